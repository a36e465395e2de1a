/* CRC-32C (Castagnoli), by the processor's instruction or by table, chosen once when a module
 * that includes this is loaded.
 *
 *     uint32_t crc32c(const uint8_t *at, size_t size);
 *     uint32_t crc32c_by_table(const uint8_t *at, size_t size);
 *
 * The x86 instruction takes 8 bytes every cycle but answers after 3, so one stream alone runs at
 * a third of the speed.  Three stretches of equal size are therefore run side by side, and their
 * three registers made one: moving a register over n zero bytes is multiplying it by x^(8n) modulo
 * the polynomial.  A carry-less product of two bit-reflected 32-bit values stands one bit low, and
 * the instruction itself, reducing that product, multiplies by x^32; so the factor is
 * x^(8n - 33).  The factors are computed at load from the polynomial, and the instruction sets
 * are asked for function by function: the rest of the module is built for any x86-64.
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

static uint32_t (*crc32c)(const uint8_t *at, size_t size) = crc32c_by_table;

#if defined(__x86_64__)

#include <immintrin.h>

/* Each of three streams takes this many bytes between folds: the large for large batches, the
 * small so that a batch of a few hundred bytes gains as well. */
enum { CRC32C_LARGE = 1024, CRC32C_SMALL = 64 };

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

__attribute__((target("sse4.2,pclmul"))) static uint32_t
crc32c_by_sse42(const uint8_t *at, size_t size) {
    uint64_t crc = 0xFFFFFFFFu;
    for (; size >= 3 * CRC32C_LARGE; at += 3 * CRC32C_LARGE, size -= 3 * CRC32C_LARGE)
        crc = crc32c_three_streams(crc, at, CRC32C_LARGE, crc32c_large);
    for (; size >= 3 * CRC32C_SMALL; at += 3 * CRC32C_SMALL, size -= 3 * CRC32C_SMALL)
        crc = crc32c_three_streams(crc, at, CRC32C_SMALL, crc32c_small);
    for (; size >= 8; at += 8, size -= 8)
        crc = _mm_crc32_u64(crc, crc32c_load(at));
    for (; size > 0; at++, size--)
        crc = _mm_crc32_u8((uint32_t)crc, *at);
    return ~(uint32_t)crc;
}

static void crc32c_choose(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
        crc32c_large = crc32c_factors_for(CRC32C_LARGE);
        crc32c_small = crc32c_factors_for(CRC32C_SMALL);
        crc32c = crc32c_by_sse42;
    }
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
        crc32c = crc32c_by_arm;
}

#else

static void crc32c_choose(void) {}

#endif

__attribute__((constructor)) static void crc32c_load_time(void) {
    crc32c_fill_table();
    crc32c_choose();
}

#endif
