/* Atomic operations of the ring: passing bytes between two processes without a lost wakeup.
 *
 *     publish    the writer of plain bytes stores a word with release; a reader that loads the word
 *                with acquire sees the bytes.  Used for frames, responses and freed space.
 *     sleep      before it sleeps, a process stores that it does, and checks once more; after
 *                publishing, a process checks whether the other one sleeps.  Each has a full fence
 *                between its store and its load, so that one of the two sees the other's store:
 *                x86 also lets a load pass an earlier store.
 *
 * Only C11 atomics, so their guarantees also hold on processors with a weaker order than x86.  A
 * test compiles this file under ThreadSanitizer, unchanged and with weakened orders, and expects
 * no report and a report (tests/transport/test_ring_orders.py).
 */
#ifndef KAFKALITE_RING_ATOMICS_H
#define KAFKALITE_RING_ATOMICS_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the fields of a ring are little-endian; this processor is not"
#endif

_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2,
               "atomics with a lock cannot be shared between processes");

#ifndef RING_ACQUIRE
#define RING_ACQUIRE memory_order_acquire
#endif
#ifndef RING_RELEASE
#define RING_RELEASE memory_order_release
#endif
#ifndef RING_FENCE
#define RING_FENCE memory_order_seq_cst
#endif

static inline uint32_t ring_load_u32(const uint8_t *at) {
    return atomic_load_explicit((const _Atomic uint32_t *)at, RING_ACQUIRE);
}

static inline uint64_t ring_load_u64(const uint8_t *at) {
    return atomic_load_explicit((const _Atomic uint64_t *)at, RING_ACQUIRE);
}

static inline void ring_publish_u32(uint8_t *at, uint32_t value) {
    atomic_store_explicit((_Atomic uint32_t *)at, value, RING_RELEASE);
}

static inline void ring_publish_u64(uint8_t *at, uint64_t value) {
    atomic_store_explicit((_Atomic uint64_t *)at, value, RING_RELEASE);
}

/* The caller then checks once more what the other side has published. */
static inline void ring_begin_sleep(uint8_t *sleeping, uint32_t how) {
    atomic_store_explicit((_Atomic uint32_t *)sleeping, how, memory_order_relaxed);
    atomic_thread_fence(RING_FENCE);
}

static inline void ring_end_sleep(uint8_t *sleeping) {
    atomic_store_explicit((_Atomic uint32_t *)sleeping, 0, memory_order_relaxed);
}

/* Return how the other process sleeps, 0 if it does not; called after publishing. */
static inline uint32_t ring_sleep_state(const uint8_t *sleeping) {
    atomic_thread_fence(RING_FENCE);
    return atomic_load_explicit((const _Atomic uint32_t *)sleeping, memory_order_relaxed);
}

/* Publish the frame that was written at `frame`.  The word behind it says that no frame follows; it
 * is read after this frame only, so it needs no order of its own. */
static inline void ring_commit(uint8_t *frame, uint32_t word, uint8_t *behind) {
    atomic_store_explicit((_Atomic uint32_t *)behind, 0, memory_order_relaxed);
    ring_publish_u32(frame, word);
}

/* Copy a frame, then free its space, which may be overwritten from then on.  The other process may
 * even change it before, so the compiler must read the content from the copy and must not read the
 * source again. */
static inline void ring_copy_out(uint8_t *copy, const uint8_t *frame, size_t size,
                                 uint8_t *consumed, uint64_t position) {
    memcpy(copy, frame, size);
    atomic_signal_fence(memory_order_seq_cst);
    ring_publish_u64(consumed, position);
}

static inline void ring_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

#endif
