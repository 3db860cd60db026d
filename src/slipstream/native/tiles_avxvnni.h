/* Tiles for AVX-VNNI: as for AVX2, but dpbusd adds four products to a 32-bit sum at once. */
#ifndef SLIPSTREAM_TILES_AVXVNNI_H
#define SLIPSTREAM_TILES_AVXVNNI_H

#include "ymm.h"

INLINE void tile_q4(const uint8_t *tile, quantised x, int64_t row, int64_t blocks, int R, float (*out)[SS_TILE]) {
    const __m256i low_half = _mm256_set1_epi8(15);
    __m256 total[4][2];
    for (int r = 0; r < R; r++) total[r][0] = total[r][1] = _mm256_setzero_ps();
    x = from_row(x, row, blocks);
    for (int64_t b = 0; b < blocks; b++, tile += SS_Q4_BYTES) {
        __m256i dot[4][2];
        ahead_of(tile, SS_Q4_BYTES);
        for (int r = 0; r < R; r++) dot[r][0] = dot[r][1] = _mm256_setzero_si256();
        UNROLL(8) for (int j = 0; j < 8; j++) {
            /* Bytes j / 2 of the low halves, then of the high ones. */
            __m256i w[2];
            for (int half = 0; half < 2; half++) {
                w[half] = _mm256_loadu_si256((const __m256i *)(tile + 64 * (j / 2) + 32 * half));
                if (j % 2) w[half] = _mm256_srli_epi16(w[half], 4);
                w[half] = _mm256_and_si256(w[half], low_half);
            }
            for (int r = 0; r < R; r++) {
                __m256i four = spread(x.codes + (r * blocks + b) * SS_BLOCK + 4 * (j / 2) + 16 * (j % 2));
                for (int half = 0; half < 2; half++) {
                    dot[r][half] = _mm256_dpbusd_avx_epi32(dot[r][half], w[half], four);
                    HOLD(dot[r][half]);
                }
            }
        }
        __m256 scale[2], least[2];
        widen_halves(tile + SS_Q4_CODES, scale);
        widen_halves(tile + SS_Q4_CODES + 2 * SS_TILE, least);
        for (int half = 0; half < 2; half++)
            for (int r = 0; r < R; r++) {
                int64_t at = r * blocks + b;
                __m256 both_scales = _mm256_mul_ps(scale[half], _mm256_set1_ps(x.scale[at]));
                total[r][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r][half]), both_scales, total[r][half]);
                total[r][half] = _mm256_fmadd_ps(least[half], _mm256_set1_ps(x.sum[at]), total[r][half]);
            }
    }
    for (int r = 0; r < R; r++) {
        _mm256_storeu_ps(out[r], total[r][0]);
        _mm256_storeu_ps(out[r] + 8, total[r][1]);
    }
}

INLINE void tile_q8(const uint8_t *tile, quantised x, int64_t row, int64_t blocks, int R, float (*out)[SS_TILE]) {
    __m256 total[4][2];
    for (int r = 0; r < R; r++) total[r][0] = total[r][1] = _mm256_setzero_ps();
    x = from_row(x, row, blocks);
    for (int64_t b = 0; b < blocks; b++, tile += SS_Q8_BYTES) {
        __m256i dot[4][2];
        ahead_of(tile, SS_Q8_BYTES);
        for (int r = 0; r < R; r++) dot[r][0] = dot[r][1] = _mm256_setzero_si256();
        UNROLL(8) for (int j = 0; j < 8; j++) {
            /* dpbusd wants one side unsigned: the sign moves over to the activation. */
            for (int half = 0; half < 2; half++) {
                __m256i codes = _mm256_loadu_si256((const __m256i *)(tile + 64 * j + 32 * half));
                __m256i sizes = _mm256_abs_epi8(codes);
                for (int r = 0; r < R; r++) {
                    __m256i four = spread(x.codes + (r * blocks + b) * SS_BLOCK + 4 * j);
                    dot[r][half] = _mm256_dpbusd_avx_epi32(dot[r][half], sizes, _mm256_sign_epi8(four, codes));
                    HOLD(dot[r][half]);
                }
            }
        }
        __m256 scale[2];
        widen_halves(tile + SS_Q8_CODES, scale);
        for (int half = 0; half < 2; half++)
            for (int r = 0; r < R; r++) {
                __m256 both_scales = _mm256_mul_ps(scale[half], _mm256_set1_ps(x.scale[r * blocks + b]));
                total[r][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r][half]), both_scales, total[r][half]);
            }
    }
    for (int r = 0; r < R; r++) {
        _mm256_storeu_ps(out[r], total[r][0]);
        _mm256_storeu_ps(out[r] + 8, total[r][1]);
    }
}

#endif
