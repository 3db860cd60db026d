/* Tiles for NEON with the dot product extension: sixteen outputs are four registers. */
#ifndef SLIPSTREAM_TILES_NEON_H
#define SLIPSTREAM_TILES_NEON_H

#include "packed.h"

#include <arm_neon.h>

enum { QUARTERS = 4 };

/* As for AVX2: keeps the compiler from regrouping sums. */
#define HOLD(v) __asm__("" : "+w"(v))

/* Sixteen 16-bit scales, or minima, as floats. */
INLINE void widen_halves(const uint8_t *halves, float32x4_t out[QUARTERS]) {
    for (int q = 0; q < QUARTERS; q++) out[q] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(halves + 8 * q)));
}

/* dot += the products of `w` with four of the sixteen activations; `lane`, which four, is a constant. */
INLINE int32x4_t add_products(int32x4_t dot, int8x16_t w, int8x16_t x, int lane) {
    switch (lane) {
        case 0: dot = vdotq_laneq_s32(dot, w, x, 0); break;
        case 1: dot = vdotq_laneq_s32(dot, w, x, 1); break;
        case 2: dot = vdotq_laneq_s32(dot, w, x, 2); break;
        default: dot = vdotq_laneq_s32(dot, w, x, 3); break;
    }
    HOLD(dot);
    return dot;
}

INLINE void tile_q4(const uint8_t *tile, quantised x, int64_t row, int64_t blocks, int R, float (*out)[SS_TILE]) {
    float32x4_t total[4][QUARTERS];
    for (int r = 0; r < R; r++)
        for (int q = 0; q < QUARTERS; q++) total[r][q] = vdupq_n_f32(0);
    x = from_row(x, row, blocks);
    for (int64_t b = 0; b < blocks; b++, tile += SS_Q4_BYTES) {
        int8x16_t codes[4][2];
        int32x4_t dot[4][QUARTERS];
        ahead_of(tile, SS_Q4_BYTES);
        for (int r = 0; r < R; r++) {
            for (int i = 0; i < 2; i++) codes[r][i] = vld1q_s8(x.codes + (r * blocks + b) * SS_BLOCK + 16 * i);
            for (int q = 0; q < QUARTERS; q++) dot[r][q] = vdupq_n_s32(0);
        }
        UNROLL(4) for (int j = 0; j < 4; j++)
            for (int q = 0; q < QUARTERS; q++) {
                uint8x16_t both = vld1q_u8(tile + 64 * j + 16 * q);
                int8x16_t low = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
                int8x16_t high = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
                for (int r = 0; r < R; r++) {
                    dot[r][q] = add_products(dot[r][q], low, codes[r][0], j);
                    dot[r][q] = add_products(dot[r][q], high, codes[r][1], j);
                }
            }
        float32x4_t scale[QUARTERS], least[QUARTERS];
        widen_halves(tile + SS_Q4_CODES, scale);
        widen_halves(tile + SS_Q4_CODES + 2 * SS_TILE, least);
        for (int q = 0; q < QUARTERS; q++)
            for (int r = 0; r < R; r++) {
                int64_t at = r * blocks + b;
                float32x4_t both_scales = vmulq_n_f32(scale[q], x.scale[at]);
                total[r][q] = vfmaq_f32(total[r][q], vcvtq_f32_s32(dot[r][q]), both_scales);
                total[r][q] = vfmaq_n_f32(total[r][q], least[q], x.sum[at]);
            }
    }
    for (int r = 0; r < R; r++)
        for (int q = 0; q < QUARTERS; q++) vst1q_f32(out[r] + 4 * q, total[r][q]);
}

INLINE void tile_q8(const uint8_t *tile, quantised x, int64_t row, int64_t blocks, int R, float (*out)[SS_TILE]) {
    float32x4_t total[4][QUARTERS];
    for (int r = 0; r < R; r++)
        for (int q = 0; q < QUARTERS; q++) total[r][q] = vdupq_n_f32(0);
    x = from_row(x, row, blocks);
    for (int64_t b = 0; b < blocks; b++, tile += SS_Q8_BYTES) {
        int8x16_t codes[4][2];
        int32x4_t dot[4][QUARTERS];
        ahead_of(tile, SS_Q8_BYTES);
        for (int r = 0; r < R; r++) {
            for (int i = 0; i < 2; i++) codes[r][i] = vld1q_s8(x.codes + (r * blocks + b) * SS_BLOCK + 16 * i);
            for (int q = 0; q < QUARTERS; q++) dot[r][q] = vdupq_n_s32(0);
        }
        UNROLL(8) for (int j = 0; j < 8; j++)
            for (int q = 0; q < QUARTERS; q++) {
                int8x16_t w = vreinterpretq_s8_u8(vld1q_u8(tile + 64 * j + 16 * q));
                for (int r = 0; r < R; r++) dot[r][q] = add_products(dot[r][q], w, codes[r][j / 4], j % 4);
            }
        float32x4_t scale[QUARTERS];
        widen_halves(tile + SS_Q8_CODES, scale);
        for (int q = 0; q < QUARTERS; q++)
            for (int r = 0; r < R; r++) {
                float32x4_t both_scales = vmulq_n_f32(scale[q], x.scale[r * blocks + b]);
                total[r][q] = vfmaq_f32(total[r][q], vcvtq_f32_s32(dot[r][q]), both_scales);
            }
    }
    for (int r = 0; r < R; r++)
        for (int q = 0; q < QUARTERS; q++) vst1q_f32(out[r] + 4 * q, total[r][q]);
}

#endif
