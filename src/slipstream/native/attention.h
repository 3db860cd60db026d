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

/* The keys or values of one key-value head: where they begin and how far a slot is from the next. */
typedef struct {
    const float *cache;
    const int64_t *pages;
    int64_t page_size, stride, length;
} context;

enum { MAX_GROUP = 4 };

/* A head's keys are short pieces, a slot apart, which the processor's own prefetcher does not follow. */
enum { AHEAD = 6 };

INLINE void ahead(const float *p, int64_t floats) {
    for (int64_t i = 0; i < floats; i += 16) __builtin_prefetch(p + i);
}

/* G query heads that read the same keys: a key is loaded once for all of them. G and, where it is 64, D are constants
 * of each call, so that the loops unroll; what one head gives is the same in every company.
 * scores[head * room + position] = query . key * scale; most[head] is the largest. */
INLINE void score(const float *query, context keys, int G, int64_t D, float *scores, int64_t room, float *most) {
    float scale = 1.0f / sqrtf((float)D);
    for (int g = 0; g < G; g++) most[g] = -INFINITY;
    for (int64_t first = 0, page = 0; first < keys.length; first += keys.page_size, page++) {
        const float *key = keys.cache + keys.pages[page] * keys.page_size * keys.stride;
        int64_t last = first + keys.page_size < keys.length ? first + keys.page_size : keys.length;
        for (int64_t position = first; position < last; position++, key += keys.stride) {
            ahead(key + AHEAD * keys.stride, D);
            f8 dot[MAX_GROUP];
            for (int g = 0; g < G; g++) dot[g] = all8(0);
            for (int64_t i = 0; i < D; i += 8) {
                f8 k = load8(key + i);
                for (int g = 0; g < G; g++) dot[g] += load8(query + g * D + i) * k;
            }
            for (int g = 0; g < G; g++) {
                float value = sum8(dot[g]) * scale;
                scores[g * room + position] = value;
                most[g] = value > most[g] ? value : most[g];
            }
        }
    }
}

/* scores become exp(score - most), and their sum is returned. The row ends in -infinity up to a multiple of 8. */
INLINE float soften(float *scores, int64_t length, float most) {
    for (int64_t position = length; position % 8; position++) scores[position] = -INFINITY;
    f8 total = all8(0);
    for (int64_t position = 0; position < length; position += 8) {
        f8 s = load8(scores + position) - most;
        i8x beyond = s == all8(-INFINITY);
        s = (f8)(~beyond & (i8x)exp8(s));
        total += s;
        store8(scores + position, s);
    }
    return sum8(total);
}

/* out[head] = sum of weights[position] * value / total[head], for N x 8 of the heads' dimensions. */
INLINE void mix(const float *weights, int64_t room, context values, int G, int N, int64_t D, const float *total,
                float *out) {
    f8 sum[MAX_GROUP][4];
    for (int g = 0; g < G; g++)
        for (int n = 0; n < N; n++) sum[g][n] = all8(0);
    for (int64_t first = 0, page = 0; first < values.length; first += values.page_size, page++) {
        const float *value = values.cache + values.pages[page] * values.page_size * values.stride;
        int64_t last = first + values.page_size < values.length ? first + values.page_size : values.length;
        for (int64_t position = first; position < last; position++, value += values.stride) {
            ahead(value + AHEAD * values.stride, 8 * N);
            for (int n = 0; n < N; n++) {
                f8 v = load8(value + 8 * n);
                for (int g = 0; g < G; g++) sum[g][n] += all8(weights[g * room + position]) * v;
            }
        }
    }
    for (int g = 0; g < G; g++)
        for (int n = 0; n < N; n++) store8(out + g * D + 8 * n, sum[g][n] / total[g]);
}

INLINE void attend(const float *query, context keys, int G, int64_t K, int64_t D, float *scores, float *out) {
    int64_t room = (keys.length + 7) / 8 * 8;
    float most[MAX_GROUP], total[MAX_GROUP];
    score(query, keys, G, D, scores, room, most);
    for (int g = 0; g < G; g++) total[g] = soften(scores + g * room, keys.length, most[g]);
    context values = keys;
    values.cache += K * D;
    int64_t done = 0;
    for (; done + 32 <= D; done += 32, values.cache += 32)
        mix(scores, room, values, G, 4, D, total, out + done);
    for (; done < D; done += 8, values.cache += 8) mix(scores, room, values, G, 1, D, total, out + done);
}

static void attend_some(const float *query, context keys, int G, int64_t K, int64_t D, float *scores, float *out) {
    if (D == 64 && G == 1) attend(query, keys, 1, K, 64, scores, out);
    else if (D == 64 && G == 2) attend(query, keys, 2, K, 64, scores, out);
    else if (D == 64 && G == 3) attend(query, keys, 3, K, 64, scores, out);
    else if (D == 64 && G == 4) attend(query, keys, 4, K, 64, scores, out);
    else
        for (int g = 0; g < G; g++) attend(query + g * D, keys, 1, K, D, scores, out + g * D);
}

/* p: queries float [rows, Q, D], cache [slots, 2 K, D], pages int64 [requests, P], positions int64 [rows],
 * out [rows, Q D]. n: rows, requests, P, page size, Q, K, D. Heads are a multiple of 8 wide. */
static void attention(const ss_node *node, int thread, int threads) {
    int64_t rows = node->n[0], P = node->n[2], page_size = node->n[3];
    int64_t Q = node->n[4], K = node->n[5], D = node->n[6], width = rows / node->n[1], begin, end;
    const int64_t *pages = node->p[2], *positions = node->p[3];
    share(rows * Q, thread, threads, &begin, &end);
    for (int64_t i = begin, some; i < end; i += some) {
        /* As many heads as share this one's keys and are this thread's. */
        int64_t row = i / Q, head = i % Q, group = Q / K, length = positions[row] + 1;
        some = group - head % group;
        some = some < end - i ? some : end - i;
        some = some < MAX_GROUP ? some : MAX_GROUP;
        if (length < 1 || length > P * page_size) {
            ss_fail();
            return;
        }
        float *scores = ss_scratch(MAX_GROUP * (length + 8) * (int64_t)sizeof(float));
        if (!scores) {
            ss_fail();
            return;
        }
        context keys = {(const float *)node->p[1] + head / group * D, pages + row / width * P, page_size, 2 * K * D,
                        length};
        attend_some((const float *)node->p[0] + i * D, keys, (int)some, K, D, scores, (float *)node->p[4] + i * D);
    }
}

#endif
