/* Tiles for AVX2: products by pairs. */
#ifndef SLIPSTREAM_TILES_AVX2_H
#define SLIPSTREAM_TILES_AVX2_H

#include "vector.h"

#include <immintrin.h>

/* The sums of eight products stay in 16 bits: eight pairs of 15 * 127 are 30,480, so one widening serves the whole
 * block. */
INLINE __m256i add_q4(__m256i sums, __m256i weights, __m256i four) {
    return _mm256_add_epi16(sums, _mm256_maddubs_epi16(weights, four));
}
INLINE __m256i q4_sums(__m256i sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }

INLINE __m256i add_q8(__m256i sums, __m256i sizes, __m256i four) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(sizes, four), _mm256_set1_epi16(1)));
}

#include "ymm.h"

#endif
