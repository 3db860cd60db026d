/* Rotary embedding with the store into the cache, and attention over pages. */
#ifndef SLIPSTREAM_ATTENTION_H
#define SLIPSTREAM_ATTENTION_H

#include "vector.h"

/* p: qkv float [rows, (Q + 2 K) D], factors [rows, 2 D], slots int64 [rows], cache, queries out [rows, Q D].
 * n: rows, Q, K, D, slots of the cache, whether the cache is half precision. */
static void rope_store(const ss_node *node, int thread, int threads) {
    int64_t Q = node->n[1], K = node->n[2], D = node->n[3], half = node->n[5], begin, end;
    const int64_t *slots = node->p[2];
    share(node->n[0], thread, threads, &begin, &end);
    float *turned = half ? ss_scratch(K * D * (int64_t)sizeof(float)) : NULL;
    if (half && !turned) {
        ss_fail();
        return;
    }
    for (int64_t row = begin; row < end; row++) {
        if (slots[row] < 0 || slots[row] >= node->n[4]) {
            ss_fail();
            return;
        }
        const float *qkv = (const float *)node->p[0] + row * (Q + 2 * K) * D;
        const float *cosine = (const float *)node->p[1] + row * 2 * D, *sine = cosine + D;
        char *cache = (char *)node->p[3] + slots[row] * 2 * K * D * (half ? 2 : 4);
        float *queries = (float *)node->p[4] + row * Q * D;
        float *keys = half ? turned : (float *)cache;
        for (int64_t head = 0; head < Q + K; head++) {
            const float *x = qkv + head * D;
            float *out = head < Q ? queries + head * D : keys + (head - Q) * D;
            for (int64_t i = 0; i < D / 2; i++) {
                out[i] = x[i] * cosine[i] + x[i + D / 2] * sine[i];
                out[i + D / 2] = x[i + D / 2] * cosine[i + D / 2] + x[i] * sine[i + D / 2];
            }
        }
        const float *values = qkv + (Q + K) * D;
        if (half) {
            narrow((uint16_t *)cache, keys, K * D);
            narrow((uint16_t *)cache + K * D, values, K * D);
        } else {
            memcpy((float *)cache + K * D, values, (size_t)(K * D) * sizeof(float));
        }
    }
}

/* The keys or values of one key-value head of one request, float or half precision. */
typedef struct {
    const char *cache;
    const int64_t *pages;
    int64_t page_size, stride; /* slots a page, bytes from a slot to the next */
} context;

/* Query heads and rows that read the same keys, and are worked on together. */
enum { TOGETHER = 12, FEW = 4 };
typedef struct {
    const float *query[TOGETHER];
    float *out[TOGETHER];
    int64_t length[TOGETHER]; /* keys that it may see */
    int count;
    int64_t longest;
} queries;

/* A head's keys are short pieces, a slot apart, and the next page is anywhere: the processor's own prefetcher follows
 * neither. So each slot fetches its like in the next page. */
INLINE void fetch(const char *p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

INLINE f8 load_cached(const char *p, int64_t i, int half) {
    return half ? widen8((const uint16_t *)p + i) : load8((const float *)p + i);
}

/* Keys [first, last) of one page: scores[position] = query . key * scale for each of G queries. A key is loaded once
 * for all of them. G, half and, where it is 64, D are constants of each call, so that the loops unroll; what one query
 * gets is the same in every company. */
INLINE void score(const float *const *query, const char *key, int64_t to_next, int64_t stride, int64_t first,
                  int64_t last, int G, int half, int64_t D, float scale, float *scores, int64_t room) {
    for (int64_t position = first; position < last; position++, key += stride) {
        fetch(key + to_next, D * (half ? 2 : 4));
        f8 dot[FEW];
        for (int g = 0; g < FEW; g++) dot[g] = all8(0);
        for (int64_t i = 0; i < D; i += 8) {
            f8 k = load_cached(key, i, half);
            for (int g = 0; g < G; g++) dot[g] += load8(query[g] + i) * k;
        }
        f4 sums = sums8(dot) * scale;
        for (int g = 0; g < G; g++) scores[g * room + position] = sums[g];
    }
}

/* scores become exp(score - largest), and their sum is returned. The row ends in zeros up to a multiple of 8. */
INLINE float soften(float *scores, int64_t length) {
    for (int64_t position = length; position % 8; position++) scores[position] = -INFINITY;
    f8 most = all8(-INFINITY), total = all8(0);
    for (int64_t position = 0; position < length; position += 8) most = max8(most, load8(scores + position));
    float top = top8(most);
    for (int64_t position = 0; position < length; position += 8) {
        f8 s = load8(scores + position) - top;
        i8x beyond = s == all8(-INFINITY);
        s = (f8)(~beyond & (i8x)exp8(s));
        total += s;
        store8(scores + position, s);
    }
    return sum8(total);
}

/* Values [first, last) of one page, for N x 8 of the head's dimensions: sum[query] += weights[position] * value. */
INLINE void mix(const float *weights, int64_t room, const char *value, int64_t to_next, int64_t stride,
                int64_t first, int64_t last, int G, int half, int N, float *const *sum, int64_t at) {
    f8 total[FEW][2];
    for (int g = 0; g < G; g++)
        for (int n = 0; n < N; n++) total[g][n] = load8(sum[g] + at + 8 * n);
    for (int64_t position = first; position < last; position++, value += stride) {
        fetch(value + to_next + at * (half ? 2 : 4), 1);
        for (int n = 0; n < N; n++) {
            f8 v = load_cached(value, at + 8 * n, half);
            for (int g = 0; g < G; g++) total[g][n] += all8(weights[g * room + position]) * v;
        }
    }
    for (int g = 0; g < G; g++)
        for (int n = 0; n < N; n++) store8(sum[g] + at + 8 * n, total[g][n]);
}

/* One of the two passes over the pages for queries [q, q + G): positions that all of them see together, the rest of
 * each alone. A query's positions come in order either way. */
INLINE void pass(const queries *them, int q, int G, context keys, int values, int half, int64_t D, float *scores,
                 int64_t room) {
    float scale = 1.0f / sqrtf((float)D);
    int64_t all = them->length[q], longest = all;
    for (int g = 1; g < G; g++) {
        all = them->length[q + g] < all ? them->length[q + g] : all;
        longest = them->length[q + g] > longest ? them->length[q + g] : longest;
    }
    for (int64_t begin = 0, page = 0; begin < longest; begin += keys.page_size, page++) {
        const char *slots = keys.cache + keys.pages[page] * keys.page_size * keys.stride;
        int more = begin + keys.page_size < longest;
        int64_t to_next = (keys.pages[page + more] - keys.pages[page]) * keys.page_size * keys.stride;
        int64_t end = begin + keys.page_size, both = all < begin ? begin : all < end ? all : end;
        float *const *out = them->out + q;
        if (values) {
            for (int64_t at = 0; at + 16 <= D; at += 16)
                mix(scores + q * room, room, slots, to_next, keys.stride, begin, both, G, half, 2, out, at);
            if (D % 16) mix(scores + q * room, room, slots, to_next, keys.stride, begin, both, G, half, 1, out, D - 8);
        } else {
            score(them->query + q, slots, to_next, keys.stride, begin, both, G, half, D, scale, scores + q * room, room);
        }
        slots += (both - begin) * keys.stride;
        for (int g = q; g < q + G; g++) {
            int64_t own = them->length[g] < end ? them->length[g] : end;
            if (own <= both) continue;
            if (values) {
                for (int64_t at = 0; at < D; at += 8)
                    mix(scores + g * room, room, slots, to_next, keys.stride, both, own, 1, half, 1, them->out + g, at);
            } else {
                score(them->query + g, slots, to_next, keys.stride, both, own, 1, half, D, scale, scores + g * room, room);
            }
        }
    }
}

INLINE void attend(const queries *them, context keys, int half, int64_t K, int64_t D, float *scores) {
    int64_t room = (them->longest + 7) / 8 * 8;
    for (int values = 0; values < 2; values++) {
        for (int q = 0; q < them->count; q += FEW) {
            if (them->count - q >= 4) pass(them, q, 4, keys, values, half, D, scores, room);
            else if (them->count - q == 3) pass(them, q, 3, keys, values, half, D, scores, room);
            else
                for (int g = q; g < them->count; g++) pass(them, g, 1, keys, values, half, D, scores, room);
        }
        for (int q = 0; q < them->count; q++) {
            float *out = them->out[q];
            if (values) {
                f8 total = all8(scores[TOGETHER * room + q]);
                for (int64_t i = 0; i < D; i += 8) store8(out + i, load8(out + i) / total);
            } else {
                scores[TOGETHER * room + q] = soften(scores + q * room, them->length[q]);
                memset(out, 0, (size_t)D * sizeof(float));
            }
        }
        keys.cache += K * D * (half ? 2 : 4); /* a slot holds all keys, then all values */
    }
}

/* p: queries float [rows, Q, D], cache [slots, 2 K, D], pages int64 [requests, P], positions int64 [rows],
 * out [rows, Q D]. n: rows, requests, P, page size, Q, K, D, whether the cache is half precision. Heads are a
 * multiple of 8 wide.
 *
 * Work is shared out in the order request, key-value head, row, query head: neighbours read the same keys. */
static void attention(const ss_node *node, int thread, int threads) {
    int64_t rows = node->n[0], P = node->n[2], page_size = node->n[3], half = node->n[7];
    int64_t Q = node->n[4], K = node->n[5], D = node->n[6], width = rows / node->n[1], group = Q / K, begin, end;
    const int64_t *positions = node->p[3];
    share(rows * Q, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end;) {
        int64_t head = i / (width * group) % K, request = i / (width * Q), within = i % (width * group);
        int64_t left = width * group - within < end - i ? width * group - within : end - i;
        queries them = {.count = (int)(left < TOGETHER ? left : TOGETHER)};
        for (int q = 0; q < them.count; q++) {
            int64_t row = request * width + (within + q) / group, length = positions[row] + 1;
            int64_t at = (row * Q + head * group + (within + q) % group) * D;
            if (length < 1 || length > P * page_size) {
                ss_fail();
                return;
            }
            them.query[q] = (const float *)node->p[0] + at;
            them.out[q] = (float *)node->p[4] + at;
            them.length[q] = length;
            them.longest = length > them.longest ? length : them.longest;
        }
        float *scores = ss_scratch(TOGETHER * (them.longest + 9) * (int64_t)sizeof(float));
        if (!scores) {
            ss_fail();
            return;
        }
        int64_t bytes = half ? 2 : 4;
        context keys = {(const char *)node->p[1] + head * D * bytes, (const int64_t *)node->p[2] + request * P,
                        page_size, 2 * K * D * bytes};
        if (D == 64 && half) attend(&them, keys, 1, K, 64, scores);
        else if (D == 64) attend(&them, keys, 0, K, 64, scores);
        else if (half) attend(&them, keys, 1, K, D, scores);
        else attend(&them, keys, 0, K, D, scores);
        i += them.count;
    }
}

#endif
