/* Rotary embedding with the store into the cache, and attention over pages. */
#ifndef SLIPSTREAM_ATTENTION_H
#define SLIPSTREAM_ATTENTION_H

#include "vector.h"

/* p: qkv float [rows, (Q + 2 K) D], factors [rows, 2 D], slots int64 [rows], cache, queries out [rows, Q D].
 * n: rows, Q, K, D, slots of the cache. */
static void rope_store(const ss_node *node, int thread, int threads) {
    int64_t Q = node->n[1], K = node->n[2], D = node->n[3], begin, end;
    const int64_t *slots = node->p[2];
    share(node->n[0], thread, threads, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        if (slots[row] < 0 || slots[row] >= node->n[4]) {
            ss_fail();
            return;
        }
        const float *qkv = (const float *)node->p[0] + row * (Q + 2 * K) * D;
        const float *cosine = (const float *)node->p[1] + row * 2 * D, *sine = cosine + D;
        float *cache = (float *)node->p[3] + slots[row] * 2 * K * D;
        float *queries = (float *)node->p[4] + row * Q * D;
        for (int64_t head = 0; head < Q + K; head++) {
            const float *x = qkv + head * D;
            float *out = head < Q ? queries + head * D : cache + (head - Q) * D;
            for (int64_t i = 0; i < D / 2; i++) {
                out[i] = x[i] * cosine[i] + x[i + D / 2] * sine[i];
                out[i + D / 2] = x[i + D / 2] * cosine[i + D / 2] + x[i] * sine[i + D / 2];
            }
        }
        memcpy(cache + K * D, qkv + (Q + K) * D, (size_t)(K * D) * sizeof(float));
    }
}

/* The keys or values of one head, page by page: where they begin and how far a slot is from the next. */
typedef struct {
    const float *cache;
    const int64_t *pages;
    int64_t page_size, stride, length;
} context;

/* scores[position] = query . key * scale; returns the largest. */
INLINE float score(const float *query, context keys, int64_t D, float scale, float *scores) {
    float most = -INFINITY;
    for (int64_t first = 0, page = 0; first < keys.length; first += keys.page_size, page++) {
        const float *key = keys.cache + keys.pages[page] * keys.page_size * keys.stride;
        int64_t last = first + keys.page_size < keys.length ? first + keys.page_size : keys.length;
        for (int64_t position = first; position < last; position++, key += keys.stride) {
            f8 dot = all8(0);
            for (int64_t i = 0; i < D; i += 8) dot += load8(query + i) * load8(key + i);
            float value = sum8(dot) * scale;
            scores[position] = value;
            most = value > most ? value : most;
        }
    }
    return most;
}

/* out = sum of weights[position] * value, for `width` of the head's dimensions, at most 64. */
INLINE void gather_values(const float *weights, context values, int64_t width, float factor, float *out) {
    f8 total[8];
    for (int i = 0; i < 8; i++) total[i] = all8(0);
    for (int64_t first = 0, page = 0; first < values.length; first += values.page_size, page++) {
        const float *value = values.cache + values.pages[page] * values.page_size * values.stride;
        int64_t last = first + values.page_size < values.length ? first + values.page_size : values.length;
        for (int64_t position = first; position < last; position++, value += values.stride) {
            f8 weight = all8(weights[position]);
            for (int64_t i = 0; i < width / 8; i++) total[i] += weight * load8(value + 8 * i);
        }
    }
    for (int64_t i = 0; i < width / 8; i++) store8(out + 8 * i, total[i] * factor);
}

/* One query head over the row's context. D is a constant where it is 64, the usual width: the loops unroll. */
INLINE void attend(const float *query, context keys, int64_t K, int64_t D, float *scores, float *out) {
    int64_t length = keys.length;
    float most = score(query, keys, D, 1.0f / sqrtf((float)D), scores);
    for (int64_t position = length; position % 8; position++) scores[position] = -INFINITY;
    f8 total = all8(0);
    for (int64_t position = 0; position < length; position += 8) {
        f8 s = load8(scores + position) - most;
        i8x beyond = s == all8(-INFINITY);
        s = (f8)(~beyond & (i8x)exp8(s));
        total += s;
        store8(scores + position, s);
    }
    context values = keys;
    values.cache += K * D;
    for (int64_t begin = 0; begin < D; begin += 64, values.cache += 64)
        gather_values(scores, values, D - begin < 64 ? D - begin : 64, 1.0f / sum8(total), out + begin);
}

/* p: queries float [rows, Q, D], cache [slots, 2 K, D], pages int64 [requests, P], positions int64 [rows],
 * out [rows, Q D]. n: rows, requests, P, page size, Q, K, D. Heads are a multiple of 8 wide. */
static void attention(const ss_node *node, int thread, int threads) {
    int64_t rows = node->n[0], P = node->n[2], page_size = node->n[3];
    int64_t Q = node->n[4], K = node->n[5], D = node->n[6], width = rows / node->n[1], begin, end;
    const int64_t *pages = node->p[2], *positions = node->p[3];
    share(rows * Q, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i / Q, head = i % Q, length = positions[row] + 1;
        if (length < 1 || length > P * page_size) {
            ss_fail();
            return;
        }
        float *scores = ss_scratch((length + 8) * (int64_t)sizeof(float));
        if (!scores) {
            ss_fail();
            return;
        }
        const float *query = (const float *)node->p[0] + i * D;
        float *out = (float *)node->p[4] + i * D;
        context keys = {(const float *)node->p[1] + head / (Q / K) * D, pages + row / width * P, page_size, 2 * K * D,
                        length};
        if (D == 64) attend(query, keys, K, 64, scores, out);
        else attend(query, keys, K, D, scores, out);
    }
}

#endif
