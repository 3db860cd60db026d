/* What the tiles with 256-bit registers share. */
#ifndef SLIPSTREAM_YMM_H
#define SLIPSTREAM_YMM_H

#include "packed.h"

#include <immintrin.h>

INLINE __m256i spread(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm256_set1_epi32(four);
}

/* Keeps the compiler from regrouping sums: it would hold all products of a block at once, and spill them. */
#define HOLD(v) __asm__("" : "+x"(v))

/* Sixteen 16-bit scales, or minima, as floats. */
INLINE void widen_halves(const uint8_t *halves, __m256 out[2]) {
    out[0] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)halves));
    out[1] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(halves + 16)));
}

#endif
