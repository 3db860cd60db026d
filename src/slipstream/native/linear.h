/* Products of rows with matrices: packed 4- and 8-bit tiles, float32, bfloat16. */
#ifndef SLIPSTREAM_LINEAR_H
#define SLIPSTREAM_LINEAR_H

#include "tiles.h"

/* Round a block; a NaN or an infinity in it makes its scale NaN, and so every product that it is part of. */
INLINE void quantise_block(const float *x, int8_t *codes, float *scale, float *sum) {
    f8 v[4], most = all8(0), poison = all8(0);
    for (int i = 0; i < 4; i++) {
        v[i] = load8(x + 8 * i);
        most = max8(most, max8(v[i], -v[i]));
        poison += v[i] * 0.0f;
    }
    float top = top8(most), inverse = top > 0 ? 127.0f / top : 0.0f;
    i8x total = {0};
    for (int i = 0; i < 4; i++) {
        f8 shifted = v[i] * inverse + 12582912.0f;
        i8x code = (i8x)shifted - (i8x)all8(12582912.0f);
        total += code;
        for (int j = 0; j < 8; j++) codes[8 * i + j] = (int8_t)code[j];
    }
    int32_t all = 0;
    for (int j = 0; j < 8; j++) all += total[j];
    *scale = top / 127.0f + sum8(poison);
    *sum = *scale * (float)all;
}

/* Every thread rounds the rows for itself: that is cheaper than meeting for it. */
static int quantise(const float *x, int64_t rows, int64_t inputs, quantised *out) {
    int64_t blocks = inputs / SS_BLOCK, codes_bytes = rows * inputs, floats = rows * blocks;
    char *scratch = ss_scratch(codes_bytes + 2 * floats * (int64_t)sizeof(float));
    if (!scratch) {
        ss_fail();
        return 0;
    }
    int8_t *codes = (int8_t *)scratch;
    float *scale = (float *)(scratch + codes_bytes), *sum = scale + floats;
    for (int64_t i = 0; i < floats; i++) quantise_block(x + i * SS_BLOCK, codes + i * SS_BLOCK, scale + i, sum + i);
    *out = (quantised){codes, scale, sum};
    return 1;
}

typedef void (*tile_function)(const uint8_t *, quantised, int64_t, int64_t, float (*)[SS_TILE]);

#define TILES(kind)                                                                                               \
    static void kind##_1(const uint8_t *t, quantised x, int64_t row, int64_t blocks, float (*out)[SS_TILE]) {     \
        kind(t, x, row, blocks, 1, out);                                                                          \
    }                                                                                                             \
    static void kind##_2(const uint8_t *t, quantised x, int64_t row, int64_t blocks, float (*out)[SS_TILE]) {     \
        kind(t, x, row, blocks, 2, out);                                                                          \
    }                                                                                                             \
    static void kind##_3(const uint8_t *t, quantised x, int64_t row, int64_t blocks, float (*out)[SS_TILE]) {     \
        kind(t, x, row, blocks, 3, out);                                                                          \
    }                                                                                                             \
    static void kind##_4(const uint8_t *t, quantised x, int64_t row, int64_t blocks, float (*out)[SS_TILE]) {     \
        kind(t, x, row, blocks, 4, out);                                                                          \
    }                                                                                                             \
    static const tile_function kind##_rows[5] = {0, kind##_1, kind##_2, kind##_3, kind##_4};

TILES(tile_q4)
TILES(tile_q8)

/* p: x float [rows, inputs], packed tiles, out float [rows, outputs], bias or NULL, residual or NULL.
 * n: rows, inputs, outputs. */
static void linear_packed(const ss_node *node, int thread, int threads, const tile_function *tiles, int64_t bytes) {
    const uint8_t *packed = node->p[1];
    float *out = node->p[2];
    const float *bias = node->p[3], *residual = node->p[4];
    int64_t rows = node->n[0], inputs = node->n[1], outputs = node->n[2];
    int64_t blocks = inputs / SS_BLOCK, begin, end;
    share((outputs + SS_TILE - 1) / SS_TILE, thread, threads, &begin, &end);
    if (begin == end) return;
    quantised x;
    if (!quantise(node->p[0], rows, inputs, &x)) return;
    for (int64_t tile = begin; tile < end; tile++) {
        int64_t first = tile * SS_TILE, count = outputs - first < SS_TILE ? outputs - first : SS_TILE;
        for (int64_t row = 0; row < rows; row += 4) {
            int some = rows - row < 4 ? (int)(rows - row) : 4;
            float sums[4][SS_TILE];
            tiles[some](packed + tile * blocks * bytes, x, row, blocks, sums);
            for (int r = 0; r < some; r++) {
                int64_t at = (row + r) * outputs + first;
                for (int64_t o = 0; o < count; o++) {
                    float value = sums[r][o];
                    if (bias) value += bias[first + o];
                    if (residual) value += residual[at + o];
                    out[at + o] = value;
                }
            }
        }
    }
}

static void linear_q4(const ss_node *node, int thread, int threads) {
    linear_packed(node, thread, threads, tile_q4_rows, SS_Q4_BYTES);
}
static void linear_q8(const ss_node *node, int thread, int threads) {
    linear_packed(node, thread, threads, tile_q8_rows, SS_Q8_BYTES);
}

/* ---- float32 product ---- */

/* Dot products of one weight row with R input rows, each in two vectors of partial sums. */
INLINE void dot_rows(const float *w, const float *x, int64_t inputs, int R, float *out) {
    f8 total[4][2];
    for (int r = 0; r < R; r++) total[r][0] = total[r][1] = all8(0);
    int64_t k = 0;
    for (; k + 16 <= inputs; k += 16) {
        f8 w0 = load8(w + k), w1 = load8(w + k + 8);
        for (int r = 0; r < R; r++) {
            total[r][0] += w0 * load8(x + r * inputs + k);
            total[r][1] += w1 * load8(x + r * inputs + k + 8);
        }
    }
    for (int r = 0; r < R; r++) {
        float rest = 0;
        for (int64_t i = k; i < inputs; i++) rest += w[i] * x[r * inputs + i];
        out[r] = sum8(total[r][0] + total[r][1]) + rest;
    }
}

/* Output o of all rows. */
INLINE void linear_row(const float *w, const float *x, int64_t rows, int64_t inputs, int64_t outputs, int64_t o,
                       const float *bias, const float *residual, float *out) {
    for (int64_t row = 0; row < rows; row += 4) {
        float sums[4];
        int some = rows - row < 4 ? (int)(rows - row) : 4;
        const float *xr = x + row * inputs;
        if (some == 4) dot_rows(w, xr, inputs, 4, sums);
        else
            for (int r = 0; r < some; r++) dot_rows(w, xr + r * inputs, inputs, 1, sums + r);
        for (int r = 0; r < some; r++) {
            int64_t at = (row + r) * outputs + o;
            out[at] = sums[r] + (bias ? bias[o] : 0) + (residual ? residual[at] : 0);
        }
    }
}

/* As linear_packed, with p[1] float [outputs, inputs]. */
static void linear_f32(const ss_node *node, int thread, int threads) {
    int64_t inputs = node->n[1], begin, end;
    share(node->n[2], thread, threads, &begin, &end);
    for (int64_t o = begin; o < end; o++)
        linear_row((const float *)node->p[1] + o * inputs, node->p[0], node->n[0], inputs, node->n[2], o, node->p[3],
                   node->p[4], node->p[2]);
}

/* As linear_f32, with p[1] bfloat16: widened to float on the way, so activations stay float. */
static void linear_bf16(const ss_node *node, int thread, int threads) {
    const float *bias = node->p[3], *residual = node->p[4];
    float *out = node->p[2];
    int64_t rows = node->n[0], inputs = node->n[1], outputs = node->n[2], begin, end;
    share(outputs, thread, threads, &begin, &end);
    float *w = ss_scratch(inputs * (int64_t)sizeof(float));
    if (!w) {
        ss_fail();
        return;
    }
    for (int64_t o = begin; o < end; o++) {
        const uint16_t *halves = (const uint16_t *)node->p[1] + o * inputs;
        uint32_t *bits = (uint32_t *)w;
        for (int64_t i = 0; i < inputs; i++) bits[i] = (uint32_t)halves[i] << 16;
        linear_row(w, node->p[0], rows, inputs, outputs, o, bias, residual, out);
    }
}

#endif
