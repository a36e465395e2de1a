/* A producer that does everything wrong with its ring.
 *
 *     ring_saboteur RING COUNTERS EVENT WAKES LEASE SEED COUNT TOPIC TEMPLATES
 *
 * RING to LEASE are descriptors it has inherited, TOPIC is a topic id in hexadecimal, TEMPLATES a
 * file of batches: each with its partition and its size before it, as two i32.  It commits COUNT
 * frames at most, some as they should be, most not, and looks at what it is answered: a batch that
 * is whole is taken, one that is not is refused.  Now and then it tries what the seals forbid, sets
 * flags that are common to both sides, and fills what can be filled; and at last, at random, it
 * breaks the layout, which must end its lease.  Prints how many frames it has committed and how it
 * ended; the exit code is 0 unless the worker was at fault.
 */
#define _GNU_SOURCE
#include "crc32c.h"
#include "ring_atomics.h"

#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, HEADER = 48, SLOTS = 1024, RESPONSE = 32, COUNTERS = PAGE + SLOTS * RESPONSE };
enum { TAKEN = 0, PRODUCER_SLEEPS = 128, CONSUMED = 0, WORKER_SLEEPS = 128, GIVEN = 256 };
enum { TEMPLATES_MAX = 256, ONE_BREACH_IN = 300, ONE_NUISANCE_IN = 400 };
/* Other clients of the run may keep all processors busy for half a minute: librdkafka polls with a
 * timeout of 0 then. */
enum { GIVE_UP_S = 60 };

/* What an answer has to say to a frame. */
enum { ANYTHING, WELL, REFUSED };

typedef struct {
    int32_t partition, size;
    const uint8_t *batch;
} template;

static int ring_file, counters_file, event, wakes, lease;
static uint8_t *ring, *frames;
static const uint8_t *counters;
static uint64_t capacity, position, sequence, taken, dice;
static uint8_t topic[16], expected[1 << 16];
static template templates[TEMPLATES_MAX];
static uint64_t template_count;
static long committed;
static int lies;

static void end(int code, const char *how, ...) {
    va_list rest;
    printf("%ld ", committed);
    va_start(rest, how);
    vprintf(how, rest);
    va_end(rest);
    printf("\n");
    fflush(stdout);
    _exit(code);
}

static uint64_t drawn(uint64_t below) {
    dice ^= dice >> 12;
    dice ^= dice << 25;
    dice ^= dice >> 27;
    return (dice * 0x2545F4914F6CDD1Dull >> 16) % below;
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int lease_has_ended(int wait_ms) {
    struct pollfd wait = {lease, POLLIN, 0};
    char byte;
    return poll(&wait, 1, wait_ms) == 1 && recv(lease, &byte, 1, MSG_DONTWAIT | MSG_PEEK) <= 0;
}

static void must_be_left(const char *breach) {
    double end_s = now_s() + GIVE_UP_S;
    while (now_s() < end_s)
        if (lease_has_ended(100))
            end(0, "was left: %s", breach);
    end(3, "was not left after %s", breach);
}

static void wake(void) {
    struct pollfd room = {event, POLLOUT, 0};
    uint64_t one = 1;
    /* It may be full, and wait when it is: we have seen to that. */
    if (poll(&room, 1, 0) == 1 && write(event, &one, 8) != 8)
        end(5, "the event cannot be written");
}

static void take_answers(void) {
    uint64_t given = ring_load_u64(counters + GIVEN);
    if (given < taken || given - taken > SLOTS)
        end(5, "%llu answers after %llu", (unsigned long long)given, (unsigned long long)taken);
    for (; taken < given; taken++) {
        const uint8_t *answer = counters + PAGE + taken % SLOTS * RESPONSE;
        uint32_t correlation;
        int16_t code;
        memcpy(&correlation, answer, 4);
        memcpy(&code, answer + 4, 2);
        int wanted = expected[correlation & 0xFFFF];
        if ((wanted == WELL && code != 0) || (wanted == REFUSED && code == 0))
            end(7, "frame %u was answered %d", correlation, code);
    }
    if (!lies)
        ring_publish_u64(ring + TAKEN, taken);
}

static void await_room(uint64_t needed) {
    double end_s = now_s() + GIVE_UP_S;
    while (capacity - (position - ring_load_u64(counters + CONSUMED)) < needed) {
        take_answers();
        if (lease_has_ended(1))
            end(lies ? 0 : 4, "was left: %s", lies ? "it lied" : "for nothing");
        if (now_s() > end_s)
            end(6, "the worker takes no frame");
    }
}

static uint64_t stride_of(uint64_t size) { return (size + 7) & ~7ull; }

/* A frame that is begun and not yet there; its place is sure to be contiguous and free. */
typedef struct {
    uint8_t *at, *word;
    uint64_t padding;
} frame_place;

static frame_place begin(uint64_t size) {
    uint64_t left = capacity - position % capacity;
    frame_place place = {.padding = stride_of(size) > left ? left : 0};
    await_room(place.padding + stride_of(size) + 8);
    place.at = frames + (position + place.padding) % capacity;
    place.word = frames + position % capacity;
    return place;
}

static void seal(uint8_t *at) {
    uint32_t crc = crc32c(at + 8, HEADER - 8);
    memcpy(at + 4, &crc, 4);
}

static void head(frame_place place, int32_t partition, int16_t acks, int32_t timeout_ms) {
    uint64_t number = sequence + (place.padding > 0);
    uint32_t correlation = (uint32_t)committed;
    memcpy(place.at + 8, &number, 8);
    memcpy(place.at + 16, topic, 16);
    memcpy(place.at + 32, &partition, 4);
    memcpy(place.at + 36, &correlation, 4);
    memcpy(place.at + 40, &acks, 2);
    memset(place.at + 42, 0, 2);
    memcpy(place.at + 44, &timeout_ms, 4);
    seal(place.at);
}

static void publish(frame_place place, uint32_t word, uint64_t stride, int wanted) {
    expected[committed & 0xFFFF] = (uint8_t)wanted;
    position += place.padding + stride;
    sequence += 1 + (place.padding > 0);
    committed++;
    ring_commit(place.at, word, frames + position % capacity);
    if (place.padding)
        ring_publish_u32(place.word, 0x80000000u | (uint32_t)place.padding);
    if (ring_sleep_state(counters + WORKER_SLEEPS))
        wake();
}

static void scribble(uint8_t *at, uint64_t size) {
    for (uint64_t times = 1 + drawn(8); times > 0; times--)
        at[drawn(size)] ^= (uint8_t)(1 + drawn(255));
}

/* One frame that keeps the layout, whatever else is wrong with it. */
static void commit_any(void) {
    const template *chosen = &templates[drawn(template_count)];
    uint32_t size = (uint32_t)chosen->size;
    frame_place place = begin(HEADER + size);
    uint8_t *batch = place.at + HEADER;
    int16_t acks = drawn(2) ? 1 : -1;
    uint64_t kind = drawn(100);
    memcpy(batch, chosen->batch, size);
    head(place, chosen->partition, acks, 30000);
    if (kind < 10) {
        publish(place, HEADER + size, stride_of(HEADER + size), WELL);
    } else if (kind < 45) {
        /* From the magic byte on, all is under a checksum or is one. */
        batch[16 + drawn(size - 16)] ^= (uint8_t)(1 + drawn(255));
        publish(place, HEADER + size, stride_of(HEADER + size), REFUSED);
    } else if (kind < 55) {
        for (uint32_t at = 0; at < size; at++)
            batch[at] = (uint8_t)drawn(256);
        publish(place, HEADER + size, stride_of(HEADER + size), REFUSED);
    } else if (kind < 80) {
        publish(place, HEADER + size, stride_of(HEADER + size), ANYTHING);
        for (uint64_t pauses = drawn(2000); pauses > 0; pauses--)
            ring_pause();
        scribble(batch, size);
    } else if (kind < 90) {
        uint32_t cut = (uint32_t)drawn(size);
        publish(place, HEADER + cut, stride_of(HEADER + cut), REFUSED);
    } else if (kind < 95) {
        place.at[16 + drawn(16)] ^= (uint8_t)(1 + drawn(255));
        seal(place.at);
        publish(place, HEADER + size, stride_of(HEADER + size), REFUSED);
    } else {
        head(place, (int32_t)(0x80000000u + drawn(1u << 31)), (int16_t)drawn(1 << 16),
             (int32_t)drawn(1u << 31) - 1);
        publish(place, HEADER + size, stride_of(HEADER + size), REFUSED);
    }
}

static void must_fail(int came, const char *what) {
    if (came != -1)
        end(8, "%s was let happen", what);
}

/* What changes nothing for anybody else. */
static void nuisance(void) {
    uint64_t many = 0xFFFFFFFFFFFFFFFEull;
    switch (drawn(9)) {
    case 0: must_fail(ftruncate(ring_file, (off_t)drawn(PAGE + capacity)), "shrinking"); break;
    case 1: must_fail(ftruncate(ring_file, (off_t)(PAGE + capacity + PAGE)), "growing"); break;
    case 2: must_fail(ftruncate(counters_file, 0), "shrinking the counters"); break;
    case 3: must_fail(fcntl(ring_file, F_ADD_SEALS, F_SEAL_WRITE), "sealing"); break;
    case 4: must_fail((int)pwrite(counters_file, &many, 8, 0), "writing to the counters"); break;
    case 5:
        if (mmap(NULL, COUNTERS, PROT_WRITE, MAP_SHARED, counters_file, 0) != MAP_FAILED)
            end(8, "mapping the counters to write was let happen");
        must_fail(mprotect((void *)counters, COUNTERS, PROT_READ | PROT_WRITE), "unprotecting");
        break;
    case 6: {
        /* The flags of a descriptor are everybody's who holds it. */
        struct pollfd room = {event, POLLOUT, 0};
        fcntl(event, F_SETFL, 0);
        fcntl(wakes, F_SETFL, 0);
        if (poll(&room, 1, 0) == 1) {
            fcntl(event, F_SETFL, O_NONBLOCK);
            while (many > 0 && write(event, &many, 8) != 8)
                many >>= 1;
            fcntl(event, F_SETFL, 0);
        }
        break;
    }
    case 7: ring_begin_sleep(ring + PRODUCER_SLEEPS, (uint32_t)drawn(1ull << 32)); break;
    case 8:
        for (int times = 0; times < 200; times++)
            wake();
        break;
    }
}

/* A breach, committed as a frame is; the worker leaves a ring that has one. */
static void breach(void) {
    const template *chosen = &templates[drawn(template_count)];
    uint32_t size = HEADER + (uint32_t)chosen->size, word = size;
    uint64_t kind = drawn(10), old;
    frame_place place = begin(size);
    memcpy(place.at + HEADER, chosen->batch, (size_t)chosen->size);
    head(place, chosen->partition, 1, 1000);
    switch (kind) {
    case 0: word = (uint32_t)(capacity / 4 + 1 + drawn(0x7FFFFFFFu - capacity / 4 - 1)); break;
    case 1: word = 1 + (uint32_t)drawn(HEADER - 1); break;
    case 2: word = 0x80000000u | (uint32_t)(drawn(capacity) & ~7ull) | 4; break;
    case 3: place.at[4 + drawn(HEADER - 4)] ^= (uint8_t)(1 + drawn(255)); break;
    case 4:
        old = drawn(2) ? sequence + 2 + drawn(1000) : drawn(sequence + 1) - 1;
        memcpy(place.at + 8, &old, 8);
        seal(place.at);
        break;
    case 5:
        place.at[42 + drawn(2)] = (uint8_t)(1 + drawn(255));
        seal(place.at);
        break;
    case 6:
        for (uint64_t at = 0; at + 8 <= capacity; at += 8) {
            uint64_t noise = drawn(~0ull) | 0x7FFFFFFFull;
            memcpy(frames + at, &noise, 8);
        }
        place.padding = 0;
        place.at = frames + position % capacity;
        word = 0x7FFFFFFF;
        break;
    case 7:
        publish(place, size, stride_of(size), ANYTHING);
        lies = 1;
        ring_publish_u64(ring + TAKEN, ring_load_u64(counters + GIVEN) + SLOTS + 1 + drawn(1 << 20));
        /* It is looked at when the lane may be full. */
        for (int more = 0; more < 2 * SLOTS && !lease_has_ended(0); more++) {
            place = begin(HEADER);
            head(place, 0, 1, 1000);
            publish(place, HEADER, HEADER, ANYTHING);
        }
        must_be_left("more answers taken than given");
        break;
    case 8:
        /* Only what nobody holds any more may be told from the rest: so it is over either way. */
        publish(place, size, stride_of(size), ANYTHING);
        scribble(place.at, size);
        end(0, "changed a frame after it was committed");
        break;
    default:
        publish(place, size, stride_of(size), ANYTHING);
        if (fallocate(ring_file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                      (off_t)(PAGE + capacity)))
            end(5, "no hole can be punched");
        end(0, "punched a hole");
    }
    publish(place, word, stride_of(size), ANYTHING);
    wake();
    must_be_left("a breach of the layout");
}

static void map_ring(void) {
    struct stat found;
    if (fstat(ring_file, &found))
        end(5, "the ring is no file");
    capacity = (uint64_t)found.st_size - PAGE;
    ring = mmap(NULL, (size_t)found.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring_file, 0);
    counters = mmap(NULL, COUNTERS, PROT_READ, MAP_SHARED, counters_file, 0);
    if (ring == MAP_FAILED || counters == MAP_FAILED)
        end(5, "the ring cannot be mapped");
    frames = ring + PAGE;
}

static void read_templates(const char *path) {
    struct stat found;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &found))
        end(5, "there are no templates");
    const uint8_t *at = mmap(NULL, (size_t)found.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    const uint8_t *last = at + found.st_size;
    while (at + 8 <= last && template_count < TEMPLATES_MAX) {
        template *next = &templates[template_count++];
        memcpy(&next->partition, at, 4);
        memcpy(&next->size, at + 4, 4);
        next->batch = at + 8;
        at += 8 + next->size;
    }
}

int main(int argc, char **argv) {
    if (argc != 10)
        end(5, "nine words are wanted");
    ring_file = atoi(argv[1]);
    counters_file = atoi(argv[2]);
    event = atoi(argv[3]);
    wakes = atoi(argv[4]);
    lease = atoi(argv[5]);
    dice = strtoull(argv[6], NULL, 10) | 1;
    long count = atol(argv[7]);
    for (int at = 0; at < 16; at++) {
        char digits[3] = {argv[8][2 * at], argv[8][2 * at + 1], 0};
        topic[at] = (uint8_t)strtoul(digits, NULL, 16);
    }
    map_ring();
    read_templates(argv[9]);
    while (committed < count) {
        if (drawn(ONE_NUISANCE_IN) == 0)
            nuisance();
        if (drawn(ONE_BREACH_IN) == 0)
            breach();
        commit_any();
        /* Nobody waits for room in the lane for want of us. */
        if (committed % 64 == 0)
            take_answers();
        if (committed % 256 == 0 && lease_has_ended(0))
            end(4, "was left: for nothing");
    }
    end(0, "has done all");
}
