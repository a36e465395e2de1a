/* One goes to sleep while the other publishes, again and again: how often did neither see it?
 *
 *     ring_fences COUNT
 *
 * Both sides are let go at the same moment; the one publishes and looks whether the other sleeps,
 * the other says that it sleeps and looks what there is.  Prints in how many of COUNT turns each
 * saw nothing of the other, which is a sleep that nobody ends.
 */
#include "ring_atomics.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { LINE = 128, TURNS = 1024, SPINS = 10000 };

static _Alignas(LINE) uint8_t words[TURNS][LINE], flags[TURNS][LINE];
static uint8_t woken[TURNS], seen[TURNS];
static _Alignas(LINE) uint8_t turn_of_one[LINE], turn_of_other[LINE];

/* Say that this side has come so far, and wait for the other, side by side where there are two
 * processors, and letting go of it where it may be the only one. */
static void meet(uint8_t *mine, const uint8_t *others, uint64_t turn) {
    ring_publish_u64(mine, turn);
    for (int spins = 0; ring_load_u64(others) < turn; spins++)
        if (spins > SPINS)
            sched_yield();
}

static void *publish(void *laps) {
    for (uint64_t lap = 0, turn = 1; lap < *(uint64_t *)laps; lap++) {
        for (int at = 0; at < TURNS; at++, turn++) {
            meet(turn_of_one, turn_of_other, turn);
            ring_publish_u32(words[at], 1);
            woken[at] = ring_sleep_state(flags[at]) != 0;
        }
        meet(turn_of_one, turn_of_other, turn++);
        meet(turn_of_one, turn_of_other, turn++);
    }
    return NULL;
}

int main(int argc, char **argv) {
    uint64_t laps = (argc > 1 ? strtoull(argv[1], NULL, 10) : 100000) / TURNS + 1, missed = 0;
    pthread_t other;
    if (pthread_create(&other, NULL, publish, &laps))
        return 1;
    for (uint64_t lap = 0, turn = 1; lap < laps; lap++) {
        for (int at = 0; at < TURNS; at++, turn++) {
            meet(turn_of_other, turn_of_one, turn);
            ring_begin_sleep(flags[at], 1);
            seen[at] = ring_load_u32(words[at]) != 0;
        }
        meet(turn_of_other, turn_of_one, turn++);
        for (int at = 0; at < TURNS; at++) {
            missed += !woken[at] && !seen[at];
            ring_end_sleep(flags[at]);
            ring_publish_u32(words[at], 0);
        }
        meet(turn_of_other, turn_of_one, turn++);
    }
    pthread_join(other, NULL);
    printf("%llu\n", (unsigned long long)missed);
    return 0;
}
