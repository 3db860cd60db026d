/* Tiles in plain C, for every processor. */
#ifndef SLIPSTREAM_TILES_PORTABLE_H
#define SLIPSTREAM_TILES_PORTABLE_H

#include "packed.h"

INLINE void tile_q4(const uint8_t *tile, quantised x, int64_t row, int64_t blocks, int R, float (*out)[SS_TILE]) {
    memset(out, 0, sizeof(float) * SS_TILE * (size_t)R);
    for (int64_t b = 0; b < blocks; b++, tile += SS_Q4_BYTES) {
        for (int r = 0; r < R; r++) {
            int64_t at = (row + r) * blocks + b;
            const int8_t *codes = x.codes + at * SS_BLOCK;
            for (int o = 0; o < SS_TILE; o++) {
                uint16_t halves[2];
                memcpy(halves, tile + SS_Q4_CODES + 2 * o, 2);
                memcpy(halves + 1, tile + SS_Q4_CODES + 2 * SS_TILE + 2 * o, 2);
                int32_t dot = 0;
                for (int j = 0; j < 4; j++)
                    for (int i = 0; i < 4; i++) {
                        int both = tile[64 * j + 4 * o + i];
                        dot += (both & 15) * codes[4 * j + i] + (both >> 4) * codes[16 + 4 * j + i];
                    }
                float both_scales = half_to_float(halves[0]) * x.scale[at];
                out[r][o] += (float)dot * both_scales + half_to_float(halves[1]) * x.sum[at];
            }
        }
    }
}

INLINE void tile_q8(const uint8_t *tile, quantised x, int64_t row, int64_t blocks, int R, float (*out)[SS_TILE]) {
    memset(out, 0, sizeof(float) * SS_TILE * (size_t)R);
    for (int64_t b = 0; b < blocks; b++, tile += SS_Q8_BYTES) {
        for (int r = 0; r < R; r++) {
            int64_t at = (row + r) * blocks + b;
            const int8_t *codes = x.codes + at * SS_BLOCK;
            for (int o = 0; o < SS_TILE; o++) {
                uint16_t half;
                memcpy(&half, tile + SS_Q8_CODES + 2 * o, 2);
                int32_t dot = 0;
                for (int j = 0; j < 8; j++)
                    for (int i = 0; i < 4; i++) dot += (int8_t)tile[64 * j + 4 * o + i] * codes[4 * j + i];
                out[r][o] += (float)dot * (half_to_float(half) * x.scale[at]);
            }
        }
    }
}

#endif
