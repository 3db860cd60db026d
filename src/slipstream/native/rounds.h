/* The small integer work between a round's graphs: geometry, ids, accept, commit. One thread does it. */
#ifndef SLIPSTREAM_ROUNDS_H
#define SLIPSTREAM_ROUNDS_H

#include "vector.h"

/* p: lengths int64 [pool], slots [requests], pages [requests, P], positions out [requests, width], KV slots out.
 * n: requests, width, P, page size, offset, pool. */
static void plan_rows(const ss_node *node, int thread, int threads) {
    (void)threads;
    if (thread) return;
    const int64_t *lengths = node->p[0], *slots = node->p[1], *pages = node->p[2];
    int64_t *positions = node->p[3], *kv_slots = node->p[4];
    int64_t width = node->n[1], P = node->n[2], page_size = node->n[3];
    for (int64_t b = 0; b < node->n[0]; b++) {
        if (slots[b] < 0 || slots[b] >= node->n[5]) {
            ss_fail();
            return;
        }
        int64_t first = lengths[slots[b]] + node->n[4];
        if (first < 0 || first + width > P * page_size) {
            ss_fail();
            return;
        }
        for (int64_t w = 0; w < width; w++) {
            positions[b * width + w] = first + w;
            kv_slots[b * width + w] = pages[b * P + (first + w) / page_size] * page_size + (first + w) % page_size;
        }
    }
}

/* p: bonus int64 [pool], slots [requests], drafts [requests, steps], ids out [requests, steps + 1].
 * n: requests, steps, pool. */
static void verify_ids(const ss_node *node, int thread, int threads) {
    (void)threads;
    if (thread) return;
    const int64_t *bonus = node->p[0], *slots = node->p[1], *drafts = node->p[2];
    int64_t *ids = node->p[3], steps = node->n[1];
    for (int64_t b = 0; b < node->n[0]; b++) {
        if (slots[b] < 0 || slots[b] >= node->n[2]) {
            ss_fail();
            return;
        }
        *ids++ = bonus[slots[b]];
        for (int64_t s = 0; s < steps; s++, drafts++) *ids++ = *drafts < 0 ? 0 : *drafts;
    }
}

/* p: candidates int64 [requests, steps], target [requests, steps + 1], advanced out, bonus out. n: requests, steps. */
static void accept_counts(const ss_node *node, int thread, int threads) {
    (void)threads;
    if (thread) return;
    int64_t steps = node->n[1];
    for (int64_t b = 0; b < node->n[0]; b++) {
        const int64_t *candidates = (const int64_t *)node->p[0] + b * steps;
        const int64_t *target = (const int64_t *)node->p[1] + b * (steps + 1);
        int64_t held = 0;
        while (held < steps && candidates[held] == target[held]) held++;
        ((int64_t *)node->p[2])[b] = held + 1;
        ((int64_t *)node->p[3])[b] = target[held];
    }
}

/* p: lengths int64 [pool], bonus [pool], slots [requests], advanced, new bonus, lengths out, bonus out.
 * n: pool, requests. */
static void commit(const ss_node *node, int thread, int threads) {
    (void)threads;
    if (thread) return;
    const int64_t *slots = node->p[2], *advanced = node->p[3], *chosen = node->p[4];
    int64_t *lengths = node->p[5], *bonus = node->p[6];
    memcpy(lengths, node->p[0], (size_t)node->n[0] * sizeof(int64_t));
    memcpy(bonus, node->p[1], (size_t)node->n[0] * sizeof(int64_t));
    for (int64_t b = 0; b < node->n[1]; b++) {
        if (slots[b] < 0 || slots[b] >= node->n[0]) {
            ss_fail();
            return;
        }
        lengths[slots[b]] += advanced[b];
        bonus[slots[b]] = chosen[b];
    }
}

/* p: advanced int64 [requests], rows out: of each request's rows the last one that it advanced to.
 * n: requests, width. */
static void last_rows(const ss_node *node, int thread, int threads) {
    (void)threads;
    if (thread) return;
    const int64_t *advanced = node->p[0];
    for (int64_t b = 0; b < node->n[0]; b++) {
        if (advanced[b] < 1 || advanced[b] > node->n[1]) {
            ss_fail();
            return;
        }
        ((int64_t *)node->p[1])[b] = b * node->n[1] + advanced[b] - 1;
    }
}

/* p: pool, slots int64 [requests], rows, pool out: the pool with these rows at these slots.
 * n: pool's rows, bytes a row, requests. */
static void put_rows(const ss_node *node, int thread, int threads) {
    (void)threads;
    if (thread) return;
    const int64_t *slots = node->p[1];
    size_t bytes = (size_t)node->n[1];
    memcpy(node->p[3], node->p[0], (size_t)node->n[0] * bytes);
    for (int64_t b = 0; b < node->n[2]; b++) {
        if (slots[b] < 0 || slots[b] >= node->n[0]) {
            ss_fail();
            return;
        }
        memcpy((char *)node->p[3] + (size_t)slots[b] * bytes, (const char *)node->p[2] + (size_t)b * bytes, bytes);
    }
}

#endif
