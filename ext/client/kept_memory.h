/* Cache of large freed blocks of memory.
 *
 * The kernel provides fresh memory page by page, each at the cost of copying it several times, and
 * the C library returns large blocks to it as soon as they are freed.  A reader of columns fills
 * megabytes, passes them on and starts over: with cached blocks it touches the same pages again.
 *
 * A slot is taken and filled by one atomic exchange, so any thread may call, with or without the
 * GIL, and a fork at any moment loses one block at most.  A block holds its size in its own first
 * bytes.  Nothing is cached unless a user of the cache has registered (kept_wanted).
 */
#ifndef KAFKALITE_KEPT_MEMORY_H
#define KAFKALITE_KEPT_MEMORY_H

#include <stddef.h>
#include <stdlib.h>

enum {
    KEPT_PIECES = 64,
    KEPT_PIECE_MIN = 64 << 10, /* the C library keeps smaller ones itself */
    KEPT_SIZE_MAX = 64 << 20
};

static void *kept_pieces[KEPT_PIECES];
static size_t kept_size;
static long kept_wanted;

/* A piece of at least this size, and not of far more; NULL: none is kept. */
static void *kept_take(size_t size, size_t *room) {
    if (size < KEPT_PIECE_MIN)
        return NULL;
    for (int slot = 0; slot < KEPT_PIECES; slot++) {
        void *piece, *none = NULL;
        size_t found;
        if (__atomic_load_n(&kept_pieces[slot], __ATOMIC_RELAXED) == NULL)
            continue;
        piece = __atomic_exchange_n(&kept_pieces[slot], NULL, __ATOMIC_ACQUIRE);
        if (piece == NULL)
            continue;
        found = *(size_t *)piece;
        if (found < size || found / 2 > size) {
            if (__atomic_compare_exchange_n(
                    &kept_pieces[slot], &none, piece, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
                continue;
            __atomic_sub_fetch(&kept_size, found, __ATOMIC_RELAXED);
            free(piece);
            continue;
        }
        __atomic_sub_fetch(&kept_size, found, __ATOMIC_RELAXED);
        *room = found;
        return piece;
    }
    return NULL;
}

/* In the place of free(): the piece has this size. */
static void kept_give(void *piece, size_t room) {
    if (room >= KEPT_PIECE_MIN && __atomic_load_n(&kept_wanted, __ATOMIC_RELAXED) > 0) {
        if (__atomic_add_fetch(&kept_size, room, __ATOMIC_RELAXED) <= KEPT_SIZE_MAX) {
            *(size_t *)piece = room;
            for (int slot = 0; slot < KEPT_PIECES; slot++) {
                void *none = NULL;
                if (__atomic_compare_exchange_n(
                        &kept_pieces[slot], &none, piece, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
                    return;
            }
        }
        __atomic_sub_fetch(&kept_size, room, __ATOMIC_RELAXED);
    }
    free(piece);
}

/* So many more, or fewer, will want some; the last one leaves nothing behind. */
static void kept_want(long more) {
    if (__atomic_add_fetch(&kept_wanted, more, __ATOMIC_RELAXED) > 0)
        return;
    for (int slot = 0; slot < KEPT_PIECES; slot++) {
        void *piece = __atomic_exchange_n(&kept_pieces[slot], NULL, __ATOMIC_ACQUIRE);
        if (piece != NULL) {
            __atomic_sub_fetch(&kept_size, *(size_t *)piece, __ATOMIC_RELAXED);
            free(piece);
        }
    }
}

#endif
