/* Cache of large freed blocks of memory.
 *
 * The kernel provides fresh memory page by page, each at the cost of copying it several times, and
 * the C library returns large blocks to it as soon as they are freed.  A reader of columns fills
 * megabytes, passes them on and starts over: with cached blocks it touches the same pages again.
 *
 * A slot is taken and filled by one atomic exchange, so any thread may call, with or without the
 * GIL, and a fork at any moment loses one block at most.  A block holds its size in its own first
 * bytes.  Nothing is cached unless a user of the cache has registered (block_cache_use).
 */
#ifndef KAFKALITE_BLOCK_CACHE_H
#define KAFKALITE_BLOCK_CACHE_H

#include <stddef.h>
#include <stdlib.h>

enum {
    BLOCK_SLOTS = 64,
    BLOCK_SIZE_MIN = 64 << 10, /* the C library caches smaller ones */
    CACHE_SIZE_MAX = 64 << 20
};

static void *cached_blocks[BLOCK_SLOTS];
static size_t cached_size;
static long cache_users;

/* Return a cached block of `size` to twice as many bytes and store its size in `room`; NULL if
 * there is none.  Smaller and larger blocks met on the way are put back or freed. */
static void *block_cache_take(size_t size, size_t *room) {
    if (size < BLOCK_SIZE_MIN)
        return NULL;
    for (int slot = 0; slot < BLOCK_SLOTS; slot++) {
        void *block, *none = NULL;
        size_t found;
        if (__atomic_load_n(&cached_blocks[slot], __ATOMIC_RELAXED) == NULL)
            continue;
        block = __atomic_exchange_n(&cached_blocks[slot], NULL, __ATOMIC_ACQUIRE);
        if (block == NULL)
            continue;
        found = *(size_t *)block;
        if (found < size || found / 2 > size) {
            if (__atomic_compare_exchange_n(
                    &cached_blocks[slot], &none, block, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
                continue;
            __atomic_sub_fetch(&cached_size, found, __ATOMIC_RELAXED);
            free(block);
            continue;
        }
        __atomic_sub_fetch(&cached_size, found, __ATOMIC_RELAXED);
        *room = found;
        return block;
    }
    return NULL;
}

/* Free a block of `room` bytes, or cache it; replaces free(). */
static void block_cache_free(void *block, size_t room) {
    if (room >= BLOCK_SIZE_MIN && __atomic_load_n(&cache_users, __ATOMIC_RELAXED) > 0) {
        if (__atomic_add_fetch(&cached_size, room, __ATOMIC_RELAXED) <= CACHE_SIZE_MAX) {
            *(size_t *)block = room;
            for (int slot = 0; slot < BLOCK_SLOTS; slot++) {
                void *none = NULL;
                if (__atomic_compare_exchange_n(
                        &cached_blocks[slot], &none, block, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
                    return;
            }
        }
        __atomic_sub_fetch(&cached_size, room, __ATOMIC_RELAXED);
    }
    free(block);
}

/* Add `change` to the number of users; without users, free all cached blocks. */
static void block_cache_use(long change) {
    if (__atomic_add_fetch(&cache_users, change, __ATOMIC_RELAXED) > 0)
        return;
    for (int slot = 0; slot < BLOCK_SLOTS; slot++) {
        void *block = __atomic_exchange_n(&cached_blocks[slot], NULL, __ATOMIC_ACQUIRE);
        if (block != NULL) {
            __atomic_sub_fetch(&cached_size, *(size_t *)block, __ATOMIC_RELAXED);
            free(block);
        }
    }
}

#endif
