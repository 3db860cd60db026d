/* Tiles for AVX-VNNI: as for AVX2, but dpbusd adds four products to a 32-bit sum at once. */
#ifndef SLIPSTREAM_TILES_AVXVNNI_H
#define SLIPSTREAM_TILES_AVXVNNI_H

#include "vector.h"

#include <immintrin.h>

INLINE __m256i add_q4(__m256i sums, __m256i weights, __m256i four) {
    return _mm256_dpbusd_avx_epi32(sums, weights, four);
}
INLINE __m256i q4_sums(__m256i sums) { return sums; }

INLINE __m256i add_q8(__m256i sums, __m256i sizes, __m256i four) {
    return _mm256_dpbusd_avx_epi32(sums, sizes, four);
}

#include "ymm.h"

#endif
