/* A ring between two threads, made of ring_atomics.h alone, for ThreadSanitizer to watch.
 *
 *     ring_orders COUNT
 *
 * One thread writes frames, the other takes them, checks them and answers; the first checks the
 * answers.  Both sleep on an eventfd as often as they may.  The stores and loads are those of
 * ring.pyx, in its order; bytes are plain, so that only the orders keep them from being raced for.
 * Ends with 0, or says what it has seen and ends with 1; a sleep of NET_MS while
 * there was something to do ends it with 2.
 */
#include "ring_atomics.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { CAPACITY = 4096, LANE = 64, FRAME_MAX = 512, LOOKS = 2000, NET_MS = 10000 };

static _Alignas(128) uint8_t frames[CAPACITY];
static _Alignas(128) uint64_t answers[LANE];
/* Each on its own line, as in the shared memory. */
static _Alignas(128) uint8_t consumed[128], given[128], taken[128];
static _Alignas(128) uint8_t producer_sleeps[128], worker_sleeps[128];
static int to_worker, to_producer;
static uint64_t count;

static void fail(const char *what, int code) {
    fprintf(stderr, "%s\n", what);
    _exit(code);
}

static void wake(int event) {
    uint64_t one = 1;
    if (write(event, &one, 8) != 8)
        fail("the event cannot be written", 1);
}

static void sleep_on(int event) {
    struct pollfd wait = {event, POLLIN, 0};
    uint64_t times;
    if (poll(&wait, 1, NET_MS) == 0)
        fail("a wake-up was lost", 2);
    if (read(event, &times, 8) != 8)
        fail("the event cannot be read", 1);
}

/* The producer sleeps, unless what it waits for has moved meanwhile. */
static void await(const uint8_t *at, uint64_t seen) {
    ring_begin_sleep(producer_sleeps, 1);
    if (ring_load_u64(at) == seen)
        sleep_on(to_producer);
    ring_end_sleep(producer_sleeps);
}

static uint32_t size_of(uint64_t number) { return 8 + (uint32_t)(number * 29 % (FRAME_MAX - 16)); }

static uint64_t stride_of(uint32_t size) { return (size + 7) & ~7ull; }

static uint64_t take_answers(uint64_t answered) {
    uint64_t there = ring_load_u64(given);
    if (there == answered)
        await(given, answered);
    for (; answered < there; answered++)
        if (answers[answered % LANE] != answered * 3)
            fail("another answer", 1);
    ring_publish_u64(taken, answered);
    return answered;
}

/* Answers are taken when the lane is full and not before: what they are published with would order
 * the frames' bytes as well, and hide that nothing else does. */
static void *produce(void *unused) {
    uint64_t position = 0, seen = 0, sent = 0, answered = 0;
    while (answered < count) {
        if (sent == count || sent - answered == LANE) {
            answered = take_answers(answered);
            continue;
        }
        uint32_t size = size_of(sent);
        uint64_t left = CAPACITY - position % CAPACITY;
        uint64_t padding = stride_of(size) > left ? left : 0;
        uint64_t needed = padding + stride_of(size) + 8;
        if (CAPACITY - (position - seen) < needed) {
            uint64_t before = seen;
            /* Awake for a while: a wake-up would order what the store alone has to. */
            for (int looks = 0; seen == before && looks < LOOKS; looks++)
                seen = ring_load_u64(consumed);
            if (seen == before)
                await(consumed, seen);
            continue;
        }
        uint8_t *frame = frames + (position + padding) % CAPACITY;
        uint8_t *word = frames + position % CAPACITY;
        memset(frame + 4, (int)(sent & 0xFF), size - 4);
        position += padding + stride_of(size);
        ring_commit(frame, size, frames + position % CAPACITY);
        if (padding)
            ring_publish_u32(word, 0x80000000u | (uint32_t)padding);
        sent++;
        if (ring_sleep_state(worker_sleeps))
            wake(to_worker);
    }
    return unused;
}

static void take(uint64_t *position, uint64_t number) {
    uint8_t copy[FRAME_MAX];
    uint32_t word = ring_load_u32(frames + *position % CAPACITY);
    if (word & 0x80000000u) {
        *position += word ^ 0x80000000u;
        word = ring_load_u32(frames + *position % CAPACITY);
    }
    if (word != size_of(number))
        fail("another size", 1);
    const uint8_t *frame = frames + *position % CAPACITY;
    *position += stride_of(word);
    ring_copy_out(copy, frame, word, consumed, *position);
    for (uint32_t at = 4; at < word; at++)
        if (copy[at] != (number & 0xFF))
            fail("another byte", 1);
}

static void *serve(void *unused) {
    uint64_t position = 0, number = 0;
    while (number < count) {
        if (ring_load_u32(frames + position % CAPACITY) != 0) {
            take(&position, number);
            if (number - ring_load_u64(taken) >= LANE)
                fail("more frames than answers have room", 1);
            answers[number % LANE] = number * 3;
            ring_publish_u64(given, ++number);
            if (ring_sleep_state(producer_sleeps))
                wake(to_producer);
            continue;
        }
        ring_begin_sleep(worker_sleeps, 1);
        if (ring_load_u32(frames + position % CAPACITY) == 0)
            sleep_on(to_worker);
        ring_end_sleep(worker_sleeps);
    }
    return unused;
}

int main(int argc, char **argv) {
    pthread_t producer, worker;
    count = argc > 1 ? strtoull(argv[1], NULL, 10) : 10000;
    to_worker = eventfd(0, EFD_NONBLOCK);
    to_producer = eventfd(0, EFD_NONBLOCK);
    if (pthread_create(&worker, NULL, serve, NULL) != 0 ||
        pthread_create(&producer, NULL, produce, NULL) != 0)
        fail("no thread", 1);
    pthread_join(producer, NULL);
    pthread_join(worker, NULL);
    return 0;
}
