/* CRC-32C (Castagnoli), the fastest way that this processor has, chosen once when a module that
 * includes this is loaded.
 *
 *     uint32_t crc32c(const uint8_t *at, size_t size);
 *     crc32c_ways[crc32c_way_count]    all that it has: by table first, each faster than the last
 *
 * The x86 instruction takes 8 bytes every cycle but answers after 3, so one stream alone runs at
 * a third of the speed.  Three stretches of equal size are therefore run side by side, and their
 * three registers made one: moving a register over n zero bytes is multiplying it by x^(8n) modulo
 * the polynomial.  A carry-less product of two bit-reflected 32-bit values stands one bit low, and
 * the instruction itself, reducing that product, multiplies by x^32; so the factor is
 * x^(8n - 33).
 *
 * Where the processor multiplies 512 bits at once, what is long is not walked by that instruction:
 * sixteen registers of 128 bits stand side by side, and each is moved over the 256 bytes that they
 * take in a step, its first half, 64 bits further, by a factor of its own.  Moved over one another
 * in the end they are 16 bytes that leave the remainder which all those bytes leave.
 *
 * The factors are computed at load from the polynomial, and the instruction sets are asked for
 * function by function: the rest of the module is built for any x86-64.
 */
#ifndef KAFKALITE_CRC32C_H
#define KAFKALITE_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CRC32C_POLYNOMIAL 0x82F63B78u /* reflected */

static uint32_t crc32c_table[8][256];

static inline uint64_t crc32c_load(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

static void crc32c_fill_table(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? CRC32C_POLYNOMIAL : 0);
        crc32c_table[0][byte] = crc;
    }
    for (int row = 1; row < 8; row++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = crc32c_table[row - 1][byte];
            crc32c_table[row][byte] = (before >> 8) ^ crc32c_table[0][before & 0xFF];
        }
}

/* Eight bytes a step: row r holds what a byte does to the register r bytes later. */
static uint32_t crc32c_by_table(const uint8_t *at, size_t size) {
    uint32_t crc = ~0u;
    for (; size >= 8; at += 8, size -= 8) {
        uint64_t word = crc32c_load(at) ^ crc;
        crc = 0;
        for (int byte = 0; byte < 8; byte++)
            crc ^= crc32c_table[7 - byte][(word >> (8 * byte)) & 0xFF];
    }
    for (; size > 0; at++, size--)
        crc = (crc >> 8) ^ crc32c_table[0][(crc ^ *at) & 0xFF];
    return ~crc;
}

typedef uint32_t (*crc32c_way)(const uint8_t *at, size_t size);

static crc32c_way crc32c = crc32c_by_table, crc32c_ways[3];
static int crc32c_way_count;

static void crc32c_offer(crc32c_way way) {
    crc32c = crc32c_ways[crc32c_way_count++] = way;
}

#if defined(__x86_64__)

#include <immintrin.h>

/* Each of three streams takes this many bytes between folds: the large for large batches, the
 * small so that a batch of a few hundred bytes gains as well.  The wide registers take as much
 * together. */
enum { CRC32C_LARGE = 1024, CRC32C_SMALL = 64, CRC32C_WIDE = 256 };

typedef struct {
    uint32_t over_one; /* moves a register over one stretch */
    uint32_t over_two;
} crc32c_factors;

static crc32c_factors crc32c_large, crc32c_small;

static uint32_t crc32c_power(long exponent) {
    uint32_t value = 0x80000000u; /* x^0, reflected */
    while (exponent-- > 0)
        value = (value >> 1) ^ (value & 1 ? CRC32C_POLYNOMIAL : 0);
    return value;
}

static crc32c_factors crc32c_factors_for(long stretch) {
    crc32c_factors factors = {crc32c_power(8 * stretch - 33), crc32c_power(16 * stretch - 33)};
    return factors;
}

__attribute__((target("sse4.2,pclmul"))) static inline uint64_t
crc32c_move(uint64_t crc, uint32_t factor) {
    __m128i product = _mm_clmulepi64_si128(
        _mm_cvtsi64_si128((long long)crc), _mm_cvtsi64_si128((long long)factor), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

__attribute__((target("sse4.2,pclmul"))) static inline uint64_t
crc32c_three_streams(uint64_t crc, const uint8_t *at, size_t stretch, crc32c_factors factors) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < stretch; i += 8) {
        crc = _mm_crc32_u64(crc, crc32c_load(at + i));
        second = _mm_crc32_u64(second, crc32c_load(at + stretch + i));
        third = _mm_crc32_u64(third, crc32c_load(at + 2 * stretch + i));
    }
    return crc32c_move(crc, factors.over_two) ^ crc32c_move(second, factors.over_one) ^ third;
}

__attribute__((target("sse4.2"))) static inline uint32_t
crc32c_finish(uint64_t crc, const uint8_t *at, size_t size) {
    for (; size >= 8; at += 8, size -= 8)
        crc = _mm_crc32_u64(crc, crc32c_load(at));
    for (; size > 0; at++, size--)
        crc = _mm_crc32_u8((uint32_t)crc, *at);
    return ~(uint32_t)crc;
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t
crc32c_by_sse42(const uint8_t *at, size_t size) {
    uint64_t crc = 0xFFFFFFFFu;
    for (; size >= 3 * CRC32C_LARGE; at += 3 * CRC32C_LARGE, size -= 3 * CRC32C_LARGE)
        crc = crc32c_three_streams(crc, at, CRC32C_LARGE, crc32c_large);
    for (; size >= 3 * CRC32C_SMALL; at += 3 * CRC32C_SMALL, size -= 3 * CRC32C_SMALL)
        crc = crc32c_three_streams(crc, at, CRC32C_SMALL, crc32c_small);
    return crc32c_finish(crc, at, size);
}

#define CRC32C_BY_AVX512 \
    __attribute__((target("avx512f,avx512dq,vpclmulqdq,sse4.2,pclmul")))

/* For both halves of a register of 128 bits, four times. */
typedef uint64_t crc32c_halves[8];

static crc32c_halves crc32c_over_256, crc32c_over_64, crc32c_over_16;

static void crc32c_fill_halves(crc32c_halves halves, long size) {
    for (int i = 0; i < 8; i++)
        halves[i] = crc32c_power(8 * size - 33 + (i % 2 ? 0 : 64));
}

CRC32C_BY_AVX512 static inline __m512i
crc32c_move_wide(__m512i value, __m512i halves, __m512i onto) {
    __m512i first = _mm512_clmulepi64_epi128(value, halves, 0x00);
    __m512i second = _mm512_clmulepi64_epi128(value, halves, 0x11);
    return _mm512_ternarylogic_epi64(first, second, onto, 0x96); /* all three, exclusive or */
}

CRC32C_BY_AVX512 static uint32_t
crc32c_by_avx512(const uint8_t *at, size_t size) {
    if (size < 2 * CRC32C_WIDE)
        return crc32c_by_sse42(at, size);
    __m512i halves = _mm512_loadu_si512(crc32c_over_256), wide[4];
    for (int i = 0; i < 4; i++)
        wide[i] = _mm512_loadu_si512(at + 64 * i);
    wide[0] = _mm512_xor_si512(wide[0], _mm512_castsi128_si512(_mm_cvtsi32_si128(-1)));
    for (at += CRC32C_WIDE, size -= CRC32C_WIDE; size >= CRC32C_WIDE;
         at += CRC32C_WIDE, size -= CRC32C_WIDE)
        for (int i = 0; i < 4; i++)
            wide[i] = crc32c_move_wide(wide[i], halves, _mm512_loadu_si512(at + 64 * i));

    halves = _mm512_loadu_si512(crc32c_over_64);
    for (int i = 1; i < 4; i++)
        wide[i] = crc32c_move_wide(wide[i - 1], halves, wide[i]);
    uint64_t words[8];
    _mm512_storeu_si512(words, wide[3]);
    __m128i last = _mm_loadu_si128((const __m128i *)words);
    const __m128i over = _mm_loadu_si128((const __m128i *)crc32c_over_16);
    for (int i = 2; i < 8; i += 2)
        last = _mm_xor_si128(
            _mm_xor_si128(_mm_clmulepi64_si128(last, over, 0x00),
                          _mm_clmulepi64_si128(last, over, 0x11)),
            _mm_loadu_si128((const __m128i *)(words + i)));
    uint64_t crc = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(last));
    crc = _mm_crc32_u64(crc, (uint64_t)_mm_extract_epi64(last, 1));
    return crc32c_finish(crc, at, size);
}

static void crc32c_choose(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul"))
        return;
    crc32c_large = crc32c_factors_for(CRC32C_LARGE);
    crc32c_small = crc32c_factors_for(CRC32C_SMALL);
    crc32c_offer(crc32c_by_sse42);
    if (!__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("vpclmulqdq"))
        return;
    crc32c_fill_halves(crc32c_over_256, CRC32C_WIDE);
    crc32c_fill_halves(crc32c_over_64, 64);
    crc32c_fill_halves(crc32c_over_16, 16);
    crc32c_offer(crc32c_by_avx512);
}

#elif defined(__aarch64__) && defined(__linux__)

#include <sys/auxv.h>

/* One stream: the instruction written out, since its header wants the whole file's target. */
static inline uint32_t crc32c_step8(uint32_t crc, uint64_t word) {
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}

static inline uint32_t crc32c_step1(uint32_t crc, uint8_t byte) {
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(byte));
    return crc;
}

static uint32_t crc32c_by_arm(const uint8_t *at, size_t size) {
    uint32_t crc = ~0u;
    for (; size >= 8; at += 8, size -= 8)
        crc = crc32c_step8(crc, crc32c_load(at));
    for (; size > 0; at++, size--)
        crc = crc32c_step1(crc, *at);
    return ~crc;
}

static void crc32c_choose(void) {
    const unsigned long has_crc32 = 1ul << 7; /* HWCAP_CRC32 */
    if (getauxval(AT_HWCAP) & has_crc32)
        crc32c_offer(crc32c_by_arm);
}

#else

static void crc32c_choose(void) {}

#endif

__attribute__((constructor)) static void crc32c_load_time(void) {
    crc32c_fill_table();
    crc32c_offer(crc32c_by_table);
    crc32c_choose();
}

#endif
