/* Kernels on rows: embedding, moving, norm, gate, argmax. */
#ifndef SLIPSTREAM_ROWS_H
#define SLIPSTREAM_ROWS_H

#include "vector.h"

/* p: packed Q8 tiles, ids int64 [rows], out float [rows, inputs]. n: rows, inputs, outputs. */
static void embed_q8(const ss_node *node, int thread, int threads) {
    const uint8_t *packed = node->p[0];
    const int64_t *ids = node->p[1];
    int64_t inputs = node->n[1], outputs = node->n[2], blocks = inputs / SS_BLOCK, begin, end;
    share(node->n[0], thread, threads, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        if (ids[row] < 0 || ids[row] >= outputs) {
            ss_fail();
            return;
        }
        const uint8_t *tile = packed + ids[row] / SS_TILE * blocks * SS_Q8_BYTES;
        int64_t lane = ids[row] % SS_TILE;
        float *out = (float *)node->p[2] + row * inputs;
        for (int64_t b = 0; b < blocks; b++, tile += SS_Q8_BYTES) {
            uint16_t half;
            memcpy(&half, tile + SS_Q8_CODES + 2 * lane, 2);
            float scale = half_to_float(half);
            for (int i = 0; i < SS_BLOCK; i++)
                *out++ = scale * (float)(int8_t)tile[i / 4 * 64 + lane * 4 + i % 4];
        }
    }
}

/* p: table bfloat16, ids int64 [rows], out float. n: rows, inputs, rows of the table. */
static void embed_bf16(const ss_node *node, int thread, int threads) {
    const int64_t *ids = node->p[1];
    int64_t inputs = node->n[1], begin, end;
    share(node->n[0], thread, threads, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        if (ids[row] < 0 || ids[row] >= node->n[2]) {
            ss_fail();
            return;
        }
        const uint16_t *halves = (const uint16_t *)node->p[0] + ids[row] * inputs;
        uint32_t *bits = (uint32_t *)node->p[2] + row * inputs;
        for (int64_t i = 0; i < inputs; i++) bits[i] = (uint32_t)halves[i] << 16;
    }
}

/* p: table, ids int64 [rows], out. n: rows, bytes a row, rows of the table. */
static void gather(const ss_node *node, int thread, int threads) {
    const int64_t *ids = node->p[1];
    int64_t bytes = node->n[1], begin, end;
    share(node->n[0], thread, threads, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        if (ids[row] < 0 || ids[row] >= node->n[2]) {
            ss_fail();
            return;
        }
        memcpy((char *)node->p[2] + row * bytes, (const char *)node->p[0] + ids[row] * bytes, (size_t)bytes);
    }
}

/* p: source, target. n: rows, bytes a row, source stride, target stride, all in bytes. */
static void copy(const ss_node *node, int thread, int threads) {
    int64_t begin, end;
    share(node->n[0], thread, threads, &begin, &end);
    for (int64_t row = begin; row < end; row++)
        memcpy((char *)node->p[1] + row * node->n[3], (const char *)node->p[0] + row * node->n[2], (size_t)node->n[1]);
}

/* p: x float [rows, width], weight [width], out. n: rows, width. f: eps. */
static void rms_norm(const ss_node *node, int thread, int threads) {
    const float *weight = node->p[1];
    int64_t width = node->n[1], begin, end;
    share(node->n[0], thread, threads, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        const float *x = (const float *)node->p[0] + row * width;
        float *out = (float *)node->p[2] + row * width;
        f8 squares = all8(0);
        float rest = 0;
        int64_t k = 0;
        for (; k + 8 <= width; k += 8) squares += load8(x + k) * load8(x + k);
        for (int64_t i = k; i < width; i++) rest += x[i] * x[i];
        float factor = 1.0f / sqrtf((sum8(squares) + rest) / (float)width + (float)node->f);
        for (k = 0; k + 8 <= width; k += 8) store8(out + k, load8(x + k) * factor * load8(weight + k));
        for (; k < width; k++) out[k] = x[k] * factor * weight[k];
    }
}

/* p: gate and up float [rows, 2 width], out [rows, width]. n: rows, width. */
static void gated_silu(const ss_node *node, int thread, int threads) {
    int64_t width = node->n[1], chunks = (width + 63) / 64, begin, end;
    share(node->n[0] * chunks, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i / chunks, k = i % chunks * 64, last = k + 64 < width ? k + 64 : width;
        const float *gate = (const float *)node->p[0] + row * 2 * width, *up = gate + width;
        float *out = (float *)node->p[1] + row * width;
        for (; k + 8 <= last; k += 8) {
            f8 g = load8(gate + k);
            store8(out + k, g / (1.0f + exp8(-g)) * load8(up + k));
        }
        for (; k < last; k++) out[k] = gate[k] / (1.0f + expf(-gate[k])) * up[k];
    }
}

/* p: x float [rows, width], out int64 [rows]. n: rows, width. The lowest index wins a tie; NaN wins over all. */
static void argmax(const ss_node *node, int thread, int threads) {
    int64_t width = node->n[1], begin, end;
    share(node->n[0], thread, threads, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        const float *x = (const float *)node->p[0] + row * width;
        int64_t best = 0, k = 0;
        /* Blocks of 64: look into one only where it holds something larger, which is rare. */
        for (; k + 64 <= width; k += 64) {
            f8 top = load8(x + k);
            i8x odd = top != top;
            for (int i = 8; i < 64; i += 8) {
                f8 v = load8(x + k + i);
                odd |= v != v;
                top = max8(top, v);
            }
            int any_odd = 0;
            for (int i = 0; i < 8; i++) any_odd |= odd[i];
            if (top8(top) > x[best] || any_odd)
                for (int64_t i = k; i < k + 64; i++)
                    if (x[best] == x[best] && (x[i] > x[best] || x[i] != x[i])) best = i;
        }
        for (; k < width; k++)
            if (x[best] == x[best] && (x[k] > x[best] || x[k] != x[k])) best = k;
        ((int64_t *)node->p[1])[row] = best;
    }
}

/* p: logits float [rows, width], out float [rows]: the largest share of the softmax, 1 / sum of exp(x - largest).
 * n: rows, width. */
static void top_share(const ss_node *node, int thread, int threads) {
    int64_t width = node->n[1], whole = width / 8 * 8, begin, end;
    share(node->n[0], thread, threads, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        const float *x = (const float *)node->p[0] + row * width;
        float largest = x[0], total;
        f8 top = all8(x[0]), sums = all8(0.0f);
        for (int64_t k = 0; k < whole; k += 8) top = max8(top, load8(x + k));
        if (whole) largest = top8(top);
        for (int64_t k = whole; k < width; k++) largest = x[k] > largest ? x[k] : largest;
        for (int64_t k = 0; k < whole; k += 8) sums += exp8(load8(x + k) - largest);
        total = sum8(sums);
        for (int64_t k = whole; k < width; k++) total += expf(x[k] - largest);
        ((float *)node->p[1])[row] = 1.0f / total;
    }
}

#endif
