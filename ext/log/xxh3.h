/* XXH3-128 with seed 0 and the default secret: the digest of keys in the log cleaner's offset map.
 *
 * Equal keys have equal digests on every machine.  Its twin is the xxhash package: this is the
 * published algorithm, XXH3_128bits of
 * https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md.
 */
#ifndef KAFKALITE_XXH3_H
#define KAFKALITE_XXH3_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct { uint64_t low, high; } xxh3_digest;

#define XXH_PRIME32_1 0x9E3779B1U
#define XXH_PRIME32_2 0x85EBCA77U
#define XXH_PRIME32_3 0xC2B2AE3DU
#define XXH_PRIME64_1 0x9E3779B185EBCA87ULL
#define XXH_PRIME64_2 0xC2B2AE3D27D4EB4FULL
#define XXH_PRIME64_3 0x165667B19E3779F9ULL
#define XXH_PRIME64_4 0x85EBCA77C2B2AE63ULL
#define XXH_PRIME64_5 0x27D4EB2F165667C5ULL
#define XXH_PRIME_MX1 0x165667919E3779F9ULL
#define XXH_PRIME_MX2 0x9FB21C651E98DF25ULL

#define XXH_STRIPE 64
#define XXH_SECRET_SIZE 192
#define XXH_BLOCK (XXH_STRIPE * ((XXH_SECRET_SIZE - XXH_STRIPE) / 8))

static const uint8_t xxh_secret[XXH_SECRET_SIZE] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static inline uint64_t xxh_read64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return value;
}

static inline uint32_t xxh_read32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap32(value);
#endif
    return value;
}

static inline uint64_t xxh_secret64(size_t at) { return xxh_read64(xxh_secret + at); }

static inline xxh3_digest xxh_mul128(uint64_t a, uint64_t b) {
    __uint128_t product = (__uint128_t) a * b;
    xxh3_digest digest = {(uint64_t) product, (uint64_t) (product >> 64)};
    return digest;
}

static inline uint64_t xxh_fold(uint64_t a, uint64_t b) {
    xxh3_digest product = xxh_mul128(a, b);
    return product.low ^ product.high;
}

static inline uint64_t xxh64_avalanche(uint64_t h) {
    h = (h ^ (h >> 33)) * XXH_PRIME64_2;
    h = (h ^ (h >> 29)) * XXH_PRIME64_3;
    return h ^ (h >> 32);
}

static inline uint64_t xxh3_avalanche(uint64_t h) {
    h = (h ^ (h >> 37)) * XXH_PRIME_MX1;
    return h ^ (h >> 32);
}

static inline xxh3_digest xxh3_1to3(const uint8_t *at, size_t size) {
    uint32_t low = ((uint32_t) at[0] << 16) | ((uint32_t) at[size >> 1] << 24) | at[size - 1]
        | ((uint32_t) size << 8);
    uint32_t swapped = __builtin_bswap32(low);
    uint32_t high = (swapped << 13) | (swapped >> 19);
    uint64_t flip_low = xxh_read32(xxh_secret) ^ xxh_read32(xxh_secret + 4);
    uint64_t flip_high = xxh_read32(xxh_secret + 8) ^ xxh_read32(xxh_secret + 12);
    xxh3_digest digest = {xxh64_avalanche(low ^ flip_low), xxh64_avalanche(high ^ flip_high)};
    return digest;
}

static inline xxh3_digest xxh3_4to8(const uint8_t *at, size_t size) {
    uint64_t low = xxh_read32(at), high = xxh_read32(at + size - 4);
    uint64_t flip = xxh_secret64(16) ^ xxh_secret64(24);
    xxh3_digest m = xxh_mul128((low + (high << 32)) ^ flip, XXH_PRIME64_1 + (size << 2));
    m.high += m.low << 1;
    m.low ^= m.high >> 3;
    m.low = (m.low ^ (m.low >> 35)) * XXH_PRIME_MX2;
    m.low ^= m.low >> 28;
    m.high = xxh3_avalanche(m.high);
    return m;
}

static inline xxh3_digest xxh3_9to16(const uint8_t *at, size_t size) {
    uint64_t flip_low = xxh_secret64(32) ^ xxh_secret64(40);
    uint64_t flip_high = xxh_secret64(48) ^ xxh_secret64(56);
    uint64_t low = xxh_read64(at), high = xxh_read64(at + size - 8);
    xxh3_digest m = xxh_mul128(low ^ high ^ flip_low, XXH_PRIME64_1), digest;
    m.low += (uint64_t) (size - 1) << 54;
    high ^= flip_high;
    m.high += high + (uint64_t) (uint32_t) high * (XXH_PRIME32_2 - 1);
    m.low ^= __builtin_bswap64(m.high);
    digest = xxh_mul128(m.low, XXH_PRIME64_2);
    digest.high += m.high * XXH_PRIME64_2;
    digest.low = xxh3_avalanche(digest.low);
    digest.high = xxh3_avalanche(digest.high);
    return digest;
}

static inline uint64_t xxh3_mix16(const uint8_t *at, size_t secret) {
    return xxh_fold(
        xxh_read64(at) ^ xxh_secret64(secret), xxh_read64(at + 8) ^ xxh_secret64(secret + 8));
}

static inline void xxh3_mix32(
    xxh3_digest *sums, const uint8_t *first, const uint8_t *second, size_t secret) {
    sums->low += xxh3_mix16(first, secret);
    sums->low ^= xxh_read64(second) + xxh_read64(second + 8);
    sums->high += xxh3_mix16(second, secret + 16);
    sums->high ^= xxh_read64(first) + xxh_read64(first + 8);
}

static inline xxh3_digest xxh3_finished(xxh3_digest sums, size_t size) {
    xxh3_digest digest;
    digest.low = xxh3_avalanche(sums.low + sums.high);
    digest.high = 0 - xxh3_avalanche(
        sums.low * XXH_PRIME64_1 + sums.high * XXH_PRIME64_4 + (uint64_t) size * XXH_PRIME64_2);
    return digest;
}

static inline xxh3_digest xxh3_17to128(const uint8_t *at, size_t size) {
    xxh3_digest sums = {size * XXH_PRIME64_1, 0};
    size_t pairs = (size - 1) / 32, i;
    for (i = pairs + 1; i > 0; i--)
        xxh3_mix32(&sums, at + 16 * (i - 1), at + size - 16 * i, 32 * (i - 1));
    return xxh3_finished(sums, size);
}

static inline xxh3_digest xxh3_129to240(const uint8_t *at, size_t size) {
    xxh3_digest sums = {size * XXH_PRIME64_1, 0};
    size_t i;
    for (i = 32; i < 160; i += 32)
        xxh3_mix32(&sums, at + i - 32, at + i - 16, i - 32);
    sums.low = xxh3_avalanche(sums.low);
    sums.high = xxh3_avalanche(sums.high);
    for (i = 160; i <= size; i += 32)
        xxh3_mix32(&sums, at + i - 32, at + i - 16, 3 + i - 160);
    {
        const uint8_t *first = at + size - 16, *second = at + size - 32;
        size_t secret = 136 - 17 - 16;
        sums.low += xxh3_mix16(first, secret);
        sums.low ^= xxh_read64(second) + xxh_read64(second + 8);
        sums.high += xxh3_mix16(second, secret + 16);
        sums.high ^= xxh_read64(first) + xxh_read64(first + 8);
    }
    return xxh3_finished(sums, size);
}

static inline void xxh3_accumulate(uint64_t *sums, const uint8_t *at, size_t secret) {
    for (int i = 0; i < 8; i++) {
        uint64_t value = xxh_read64(at + 8 * i), keyed = value ^ xxh_secret64(secret + 8 * i);
        sums[i ^ 1] += value;
        sums[i] += (uint64_t) (uint32_t) keyed * (keyed >> 32);
    }
}

static inline uint64_t xxh3_merged(const uint64_t *sums, size_t secret, uint64_t start) {
    for (int i = 0; i < 4; i++)
        start += xxh_fold(
            sums[2 * i] ^ xxh_secret64(secret + 16 * i),
            sums[2 * i + 1] ^ xxh_secret64(secret + 16 * i + 8));
    return xxh3_avalanche(start);
}

static xxh3_digest xxh3_long(const uint8_t *at, size_t size) {
    uint64_t sums[8] = {
        XXH_PRIME32_3, XXH_PRIME64_1, XXH_PRIME64_2, XXH_PRIME64_3,
        XXH_PRIME64_4, XXH_PRIME32_2, XXH_PRIME64_5, XXH_PRIME32_1,
    };
    size_t stripes = XXH_BLOCK / XXH_STRIPE, blocks = (size - 1) / XXH_BLOCK, n, i;
    xxh3_digest digest;
    for (n = 0; n < blocks; n++) {
        for (i = 0; i < stripes; i++)
            xxh3_accumulate(sums, at + n * XXH_BLOCK + i * XXH_STRIPE, 8 * i);
        for (i = 0; i < 8; i++) {
            sums[i] ^= sums[i] >> 47;
            sums[i] ^= xxh_secret64(XXH_SECRET_SIZE - XXH_STRIPE + 8 * i);
            sums[i] *= XXH_PRIME32_1;
        }
    }
    stripes = (size - 1 - XXH_BLOCK * blocks) / XXH_STRIPE;
    for (i = 0; i < stripes; i++)
        xxh3_accumulate(sums, at + blocks * XXH_BLOCK + i * XXH_STRIPE, 8 * i);
    xxh3_accumulate(sums, at + size - XXH_STRIPE, XXH_SECRET_SIZE - XXH_STRIPE - 7);
    digest.low = xxh3_merged(sums, 11, (uint64_t) size * XXH_PRIME64_1);
    digest.high = xxh3_merged(
        sums, XXH_SECRET_SIZE - XXH_STRIPE - 11, ~((uint64_t) size * XXH_PRIME64_2));
    return digest;
}

static inline xxh3_digest xxh3_128(const uint8_t *at, size_t size) {
    if (size > 240)
        return xxh3_long(at, size);
    if (size > 128)
        return xxh3_129to240(at, size);
    if (size > 16)
        return xxh3_17to128(at, size);
    if (size > 8)
        return xxh3_9to16(at, size);
    if (size >= 4)
        return xxh3_4to8(at, size);
    if (size)
        return xxh3_1to3(at, size);
    xxh3_digest digest = {
        xxh64_avalanche(xxh_secret64(64) ^ xxh_secret64(72)),
        xxh64_avalanche(xxh_secret64(80) ^ xxh_secret64(88)),
    };
    return digest;
}

/* The share of `count` that `hash` is of 2^64: a slot, without a division. */
static inline uint64_t xxh3_scaled(uint64_t hash, uint64_t count) {
    return xxh_mul128(hash, count).high;
}

#endif
