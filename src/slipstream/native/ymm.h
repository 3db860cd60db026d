/* Tiles with 256-bit registers: sixteen outputs are two of them. How products are added is the instruction set's; a
 * file that includes this defines, before it,
 *
 *     add_q4(sums, weights, four)    sums of one block with the products of unsigned weights and signed activations
 *     q4_sums(sums)                  these sums, in 32 bits
 *     add_q8(sums, sizes, four)      the same for 8-bit weights; sums in 32 bits
 */
#ifndef SLIPSTREAM_YMM_H
#define SLIPSTREAM_YMM_H

#include "packed.h"

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

/* Both halves of a tile share each spread activation. */
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
                    dot[r][half] = add_q4(dot[r][half], w[half], four);
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
                __m256 value = _mm256_cvtepi32_ps(q4_sums(dot[r][half]));
                __m256 both_scales = _mm256_mul_ps(scale[half], _mm256_set1_ps(x.scale[at]));
                total[r][half] = _mm256_fmadd_ps(value, both_scales, total[r][half]);
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
            /* The products want one side unsigned: the sign moves over to the activation. */
            for (int half = 0; half < 2; half++) {
                __m256i codes = _mm256_loadu_si256((const __m256i *)(tile + 64 * j + 32 * half));
                __m256i sizes = _mm256_abs_epi8(codes);
                for (int r = 0; r < R; r++) {
                    __m256i four = spread(x.codes + (r * blocks + b) * SS_BLOCK + 4 * j);
                    dot[r][half] = add_q8(dot[r][half], sizes, _mm256_sign_epi8(four, codes));
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
