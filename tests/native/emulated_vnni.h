/* The intrinsics of AVX-VNNI and, with EMULATE_AVX512, AVX512-VNNI that the tiles use, in GCC's vectors: put before
 * kernels.c with -include, it lets the tiles' logic run on a processor with AVX2. Not their machine code.
 */
#ifndef EMULATED_VNNI_H
#define EMULATED_VNNI_H

#include <immintrin.h> /* before the names below: it has its own, for processors that have them */

#include <math.h>
#include <stdint.h>
#include <string.h>

/* dpbusd: to each 32-bit sum the products of its four unsigned bytes of a with its four signed bytes of b. */
static inline void emulate_dpbusd(void *sums, const void *a, const void *b, int count) {
    int32_t sum[16];
    uint8_t left[64];
    int8_t right[64];
    memcpy(sum, sums, sizeof *sum * (size_t)count);
    memcpy(left, a, 4 * (size_t)count);
    memcpy(right, b, 4 * (size_t)count);
    for (int i = 0; i < 4 * count; i++) sum[i / 4] += left[i] * right[i];
    memcpy(sums, sum, sizeof *sum * (size_t)count);
}

#ifndef EMULATE_AVX512
#define __AVXVNNI__ 1

static inline __m256i emulated_dpbusd_256(__m256i sum, __m256i a, __m256i b) {
    emulate_dpbusd(&sum, &a, &b, 8);
    return sum;
}
#define _mm256_dpbusd_avx_epi32 emulated_dpbusd_256

#else
#define __AVX512F__ 1
#define __AVX512VNNI__ 1

typedef int32_t wide_ints __attribute__((vector_size(64), may_alias));
typedef float wide_floats __attribute__((vector_size(64), may_alias));
typedef uint16_t wide_halves __attribute__((vector_size(64)));

#define __m512i wide_ints
#define __m512 wide_floats

static inline __m512i emulated_load(const void *p) {
    __m512i v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline __m512i emulated_dpbusd_512(__m512i sum, __m512i a, __m512i b) {
    emulate_dpbusd(&sum, &a, &b, 16);
    return sum;
}
static inline __m512 emulated_fma(__m512 a, __m512 b, __m512 c) {
    for (int i = 0; i < 16; i++) c[i] = fmaf(a[i], b[i], c[i]);
    return c;
}
static inline __m512 emulated_widen(__m256i halves) {
    __m256 parts[2] = {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                       _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
    __m512 v;
    memcpy(&v, parts, sizeof v);
    return v;
}
static inline void emulated_store(float *p, __m512 v) { memcpy(p, &v, sizeof v); }

#define _mm512_set1_epi32(x) ((__m512i){} + (int32_t)(x))
#define _mm512_set1_epi8(x) ((__m512i){} + (int32_t)(0x01010101u * (uint8_t)(x)))
#define _mm512_set1_ps(x) ((__m512){} + (float)(x))
#define _mm512_setzero_si512() ((__m512i){})
#define _mm512_setzero_ps() ((__m512){})
#define _mm512_loadu_si512 emulated_load
#define _mm512_storeu_ps emulated_store
#define _mm512_and_si512(a, b) ((a) & (b))
#define _mm512_xor_si512(a, b) ((a) ^ (b))
#define _mm512_srli_epi16(a, bits) ((__m512i)((wide_halves)(a) >> (bits)))
#define _mm512_dpbusd_epi32 emulated_dpbusd_512
#define _mm512_cvtph_ps emulated_widen
#define _mm512_cvtepi32_ps(a) __builtin_convertvector(a, __m512)
#define _mm512_mul_ps(a, b) ((a) * (b))
#define _mm512_fmadd_ps emulated_fma
#define _mm512_fnmadd_ps(a, b, c) emulated_fma(-(a), b, c)
#endif

#endif
