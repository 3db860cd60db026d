/* Tiles for AVX512-VNNI: sixteen outputs are one register. */
#ifndef SLIPSTREAM_TILES_AVX512_H
#define SLIPSTREAM_TILES_AVX512_H

#include "packed.h"

#include <immintrin.h>

INLINE __m512i spread(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm512_set1_epi32(four);
}

INLINE void tile_q4(const uint8_t *tile, quantised x, int64_t row, int64_t blocks, int R, float (*out)[SS_TILE]) {
    const __m512i low_half = _mm512_set1_epi8(15);
    __m512 total[4];
    for (int r = 0; r < R; r++) total[r] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, tile += SS_Q4_BYTES) {
        __m512i dot[4];
        for (int r = 0; r < R; r++) dot[r] = _mm512_setzero_si512();
        for (int j = 0; j < 4; j++) {
            __m512i both = _mm512_loadu_si512(tile + 64 * j);
            __m512i low = _mm512_and_si512(both, low_half);
            __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_half);
            for (int r = 0; r < R; r++) {
                const int8_t *codes = x.codes + ((row + r) * blocks + b) * SS_BLOCK + 4 * j;
                dot[r] = _mm512_dpbusd_epi32(dot[r], low, spread(codes));
                dot[r] = _mm512_dpbusd_epi32(dot[r], high, spread(codes + 16));
            }
        }
        __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(tile + SS_Q4_CODES)));
        __m512 least = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(tile + SS_Q4_CODES + 2 * SS_TILE)));
        for (int r = 0; r < R; r++) {
            int64_t at = (row + r) * blocks + b;
            __m512 both_scales = _mm512_mul_ps(scale, _mm512_set1_ps(x.scale[at]));
            total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r]), both_scales, total[r]);
            total[r] = _mm512_fmadd_ps(least, _mm512_set1_ps(x.sum[at]), total[r]);
        }
    }
    for (int r = 0; r < R; r++) _mm512_storeu_ps(out[r], total[r]);
}

INLINE void tile_q8(const uint8_t *tile, quantised x, int64_t row, int64_t blocks, int R, float (*out)[SS_TILE]) {
    /* dpbusd wants one side unsigned: code + 128, and 128 times the sum of the row's codes taken off again. */
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    __m512 total[4];
    for (int r = 0; r < R; r++) total[r] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, tile += SS_Q8_BYTES) {
        __m512i dot[4];
        for (int r = 0; r < R; r++) dot[r] = _mm512_setzero_si512();
        for (int j = 0; j < 8; j++) {
            __m512i codes = _mm512_xor_si512(_mm512_loadu_si512(tile + 64 * j), flip);
            for (int r = 0; r < R; r++)
                dot[r] = _mm512_dpbusd_epi32(dot[r], codes, spread(x.codes + ((row + r) * blocks + b) * SS_BLOCK + 4 * j));
        }
        __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(tile + SS_Q8_CODES)));
        for (int r = 0; r < R; r++) {
            int64_t at = (row + r) * blocks + b;
            __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(dot[r]), _mm512_set1_ps(x.scale[at]));
            value = _mm512_fnmadd_ps(_mm512_set1_ps(128.0f), _mm512_set1_ps(x.sum[at]), value);
            total[r] = _mm512_fmadd_ps(value, scale, total[r]);
        }
    }
    for (int r = 0; r < R; r++) _mm512_storeu_ps(out[r], total[r]);
}

#endif
