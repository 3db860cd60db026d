/* Runs the kernels of one instruction set against double precision, or against the portable kernels, without Python:
 * for processors that only an emulator has here. See test_instruction_sets.py.
 *
 * usage: kernels_driver ISA; exit 0 and "ISA: same results", 1 with the first difference, 3 where it cannot run.
 */
#include "slipstream_native.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ss_run(const ss_node *nodes, int64_t count, int threads, const ss_times *times);
const char *ss_choose(const char *wanted);

enum { MOST_ROWS = 9 };

static const char *isa;
static uint64_t state = 1;

static uint32_t random_bits(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}
static int between(int low, int high) { return low + (int)(random_bits() % (uint32_t)(high - low + 1)); }
static float uniform(void) { return (float)(int32_t)random_bits() * 0x1p-31f; }

static void *some(size_t bytes) {
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory) exit(2);
    return memory;
}
static float *floats(int64_t count) {
    float *values = some(sizeof(float) * (size_t)count);
    for (int64_t i = 0; i < count; i++) values[i] = uniform();
    return values;
}

static void run(const char *wanted, ss_node node, int threads) {
    ss_choose(wanted);
    if (ss_run(&node, 1, threads, NULL)) {
        printf("%s: operation %d failed\n", wanted, (int)node.op);
        exit(1);
    }
}

static void differ(const char *what, int64_t row, int64_t at, double got, double want) {
    printf("%s: %s, row %d, element %d: %.9g, not %.9g\n", isa, what, (int)row, (int)at, got, want);
    exit(1);
}

/* Equal where `want` is NaN or infinite, else within `bound`. */
static void expect(const char *what, int64_t row, int64_t at, double got, double want, double bound) {
    if (isnan(want) ? isnan(got) : isinf(want) ? got == want : fabs(got - want) <= bound) return;
    differ(what, row, at, got, want);
}

/* ---- packed matrices ---- */

/* value / 2^power in half precision, which holds it exactly. */
static uint16_t half_of(int value, int power) {
    int sign = value < 0, size = abs(value), exponent = 15 - power;
    if (!size) return 0;
    while (size < 1024) size *= 2, exponent--;
    return (uint16_t)(sign << 15 | (exponent + 10) << 10 | (size - 1024));
}

typedef struct {
    int q4;
    int64_t inputs, outputs, blocks, bytes; /* bytes of a block of a tile */
    uint8_t *packed;
    double *weights; /* [outputs, inputs] */
} matrix;

static matrix new_matrix(int q4, int64_t inputs, int64_t outputs) {
    int64_t tiles = (outputs + SS_TILE - 1) / SS_TILE;
    matrix m = {q4, inputs, outputs, inputs / SS_BLOCK, q4 ? SS_Q4_BYTES : SS_Q8_BYTES, NULL, NULL};
    m.packed = some((size_t)(tiles * m.blocks * m.bytes));
    m.weights = some(sizeof(double) * (size_t)(outputs * inputs));
    for (int64_t o = 0; o < outputs; o++)
        for (int64_t b = 0; b < m.blocks; b++) {
            uint8_t *tile = m.packed + (o / SS_TILE * m.blocks + b) * m.bytes;
            int lane = (int)(o % SS_TILE), scale = between(-31, 31), least = q4 ? between(-31, 31) : 0;
            uint16_t halves[2] = {half_of(scale, 9), half_of(least, 5)};
            memcpy(tile + (q4 ? SS_Q4_CODES : SS_Q8_CODES) + 2 * lane, halves, 2);
            if (q4) memcpy(tile + SS_Q4_CODES + 2 * SS_TILE + 2 * lane, halves + 1, 2);
            for (int i = 0; i < SS_BLOCK; i++) {
                /* Now and then a block of the largest codes: the sums must hold it. */
                int code = b % 3 == 2 ? (q4 ? 15 : -128) : q4 ? between(0, 15) : between(-128, 127);
                if (q4) tile[i % 16 / 4 * 64 + lane * 4 + i % 4] |= (uint8_t)(code << (i < 16 ? 0 : 4));
                else tile[i / 4 * 64 + lane * 4 + i % 4] = (uint8_t)code;
                m.weights[o * inputs + b * SS_BLOCK + i] = scale * 0x1p-9 * code + least * 0x1p-5;
            }
        }
    return m;
}

static void free_matrix(matrix m) {
    free(m.packed);
    free(m.weights);
}

/* Rows that are 8-bit codes times a power of two already, so that nothing is lost in rounding. Of nine rows, one is
 * zero, one tiny, one large, one all of the largest code, one holds a NaN and one an infinity. */
static float *exact_rows(int64_t rows, int64_t inputs) {
    float *x = some(sizeof(float) * (size_t)(rows * inputs));
    for (int64_t r = 0; r < rows; r++) {
        float unit = r == 2 ? 0 : r == 3 ? 0x1p-100f : r == 4 ? 0x1p100f : ldexpf(1, between(-9, 0));
        for (int64_t i = 0; i < inputs; i++)
            x[r * inputs + i] = unit * (float)(i % SS_BLOCK == 7 || r == 5 ? 127 : between(-127, 127));
    }
    if (rows > 6) x[6 * inputs + between(0, (int)inputs - 1)] = NAN;
    if (rows > 7) x[7 * inputs + between(0, (int)inputs - 1)] = INFINITY;
    return x;
}

static void check_packed(int q4, int64_t inputs, int64_t outputs, int with_more) {
    const char *what = q4 ? "linear_q4" : "linear_q8";
    matrix m = new_matrix(q4, inputs, outputs);
    float *x = exact_rows(MOST_ROWS, inputs), *bias = floats(outputs), *residual = floats(MOST_ROWS * outputs);
    size_t bytes = sizeof(float) * (size_t)(MOST_ROWS * outputs);
    float *all = some(bytes), *part = some(bytes);
    if (!with_more) {
        memset(bias, 0, sizeof(float) * (size_t)outputs);
        memset(residual, 0, bytes);
    }
    ss_node node = {.op = q4 ? SS_LINEAR_Q4 : SS_LINEAR_Q8,
                    .p = {x, m.packed, all, with_more ? bias : NULL, with_more ? residual : NULL},
                    .n = {MOST_ROWS, inputs, outputs}};
    run(isa, node, 1);
    for (int64_t r = 0; r < MOST_ROWS; r++) {
        int odd = r == 6 || r == 7; /* NaN or infinity: the whole row is NaN */
        for (int64_t o = 0; o < outputs; o++) {
            double want = bias[o] + (double)residual[r * outputs + o], size = fabs(want);
            for (int64_t i = 0; i < inputs; i++) {
                double term = x[r * inputs + i] * m.weights[o * inputs + i];
                want += term;
                size += fabs(term);
            }
            expect(what, r, o, all[r * outputs + o], odd ? NAN : want, 1e-6 * size);
        }
    }
    /* The same bits in any company, in teams of any size. */
    for (int64_t rows = 1; rows <= MOST_ROWS; rows++)
        for (int64_t first = 0; first + rows <= MOST_ROWS; first++) {
            node.p[0] = x + first * inputs;
            node.p[2] = part;
            node.p[4] = with_more ? residual + first * outputs : NULL;
            node.n[0] = rows;
            run(isa, node, 1 + (int)(first % 3));
            for (int64_t i = 0; i < rows * outputs; i++)
                if (memcmp(part + i, all + first * outputs + i, sizeof(float)))
                    differ("in other company", first + i / outputs, i % outputs, part[i], all[first * outputs + i]);
        }
    free_matrix(m);
    free(x), free(bias), free(residual), free(all), free(part);
}

/* ---- all others, against the portable kernels ---- */

/* Run on both: the floats at p[result] agree within `bound` of the larger of 1 and their size. */
static void check_floats(const char *what, ss_node node, int result, int64_t rows, int64_t width, double bound) {
    float *outs[2];
    for (int i = 0; i < 2; i++) {
        node.p[result] = outs[i] = some(sizeof(float) * (size_t)(rows * width));
        run(i ? isa : "portable", node, 1 + i);
    }
    for (int64_t i = 0; i < rows * width; i++)
        expect(what, i / width, i % width, outs[1][i], outs[0][i], bound * fmax(1, fabs(outs[0][i])));
    free(outs[0]), free(outs[1]);
}

static void check_ids(const char *what, ss_node node, int result, int64_t rows) {
    int64_t out[2][MOST_ROWS];
    for (int i = 0; i < 2; i++) {
        node.p[result] = out[i];
        run(i ? isa : "portable", node, 1 + i);
    }
    for (int64_t r = 0; r < rows; r++)
        if (out[0][r] != out[1][r]) differ(what, r, 0, (double)out[1][r], (double)out[0][r]);
}

static void check_dense(int64_t inputs, int64_t outputs) {
    float *x = floats(MOST_ROWS * inputs), *w = floats(outputs * inputs), *bias = floats(outputs);
    uint16_t *halves = some(sizeof(uint16_t) * (size_t)(outputs * inputs));
    for (int64_t i = 0; i < outputs * inputs; i++) {
        uint32_t bits;
        memcpy(&bits, w + i, sizeof bits);
        halves[i] = (uint16_t)(bits >> 16);
    }
    for (int64_t rows = 1; rows <= MOST_ROWS; rows++) {
        ss_node node = {.op = SS_LINEAR_F32, .p = {x, w, NULL, bias}, .n = {rows, inputs, outputs}};
        check_floats("linear_f32", node, 2, rows, outputs, 1e-5);
        node.op = SS_LINEAR_BF16;
        node.p[1] = halves;
        check_floats("linear_bf16", node, 2, rows, outputs, 1e-5);
    }
    free(x), free(w), free(bias), free(halves);
}

static void check_rows(int64_t width) {
    float *x = floats(MOST_ROWS * 2 * width), *weight = floats(width);
    for (int64_t i = 0; i < MOST_ROWS * 2 * width; i++) x[i] *= i % 11 ? 9.0f : 200.0f;
    x[3 * width] = NAN;
    for (int64_t i = 4 * width; i < 5 * width; i++) x[i] = 0;
    ss_node norm = {.op = SS_RMS_NORM, .p = {x, weight}, .n = {MOST_ROWS, width}, .f = 1e-5};
    check_floats("rms_norm", norm, 2, MOST_ROWS, width, 1e-5);
    ss_node gate = {.op = SS_GATED_SILU, .p = {x}, .n = {MOST_ROWS, width}};
    check_floats("gated_silu", gate, 1, MOST_ROWS, width, 1e-5);
    x[5 * width + width / 2] = x[5 * width + width - 1] = 1e9f; /* a tie: the first wins */
    check_ids("argmax", (ss_node){.op = SS_ARGMAX, .p = {x}, .n = {MOST_ROWS, width}}, 1, MOST_ROWS);
    free(x), free(weight);
}

static void check_embedding(void) {
    enum { TOKENS = 35, WIDTH = 96, ROWS = 5 };
    matrix m = new_matrix(0, WIDTH, TOKENS);
    int64_t ids[ROWS] = {0, 34, 16, 16, 15};
    float out[ROWS * WIDTH];
    run(isa, (ss_node){.op = SS_EMBED_Q8, .p = {m.packed, ids, out}, .n = {ROWS, WIDTH, TOKENS}}, 2);
    for (int i = 0; i < ROWS * WIDTH; i++)
        expect("embed_q8", i / WIDTH, i % WIDTH, out[i], m.weights[ids[i / WIDTH] * WIDTH + i % WIDTH], 0);
    uint16_t halves[TOKENS * WIDTH];
    for (int i = 0; i < TOKENS * WIDTH; i++) halves[i] = (uint16_t)(0x3f80 + i % 100);
    run(isa, (ss_node){.op = SS_EMBED_BF16, .p = {halves, ids, out}, .n = {ROWS, WIDTH, TOKENS}}, 2);
    for (int i = 0; i < ROWS * WIDTH; i++) {
        double want = 1 + (ids[i / WIDTH] * WIDTH + i % WIDTH) % 100 / 128.0;
        expect("embed_bf16", i / WIDTH, i % WIDTH, out[i], want, 0);
    }
    free_matrix(m);
}

static double half_value(uint16_t half) {
    int exponent = half >> 10 & 31, fraction = half & 1023;
    double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return half & 0x8000 ? -size : size;
}

/* A cache of `count` random values, float or half precision. */
static void *new_cache(int64_t count, int half) {
    if (!half) return floats(count);
    uint16_t *values = some(sizeof(uint16_t) * (size_t)count);
    for (int64_t i = 0; i < count; i++) values[i] = half_of(between(-31, 31), 5);
    return values;
}
static double cached(const void *cache, int64_t i, int half) {
    return half ? half_value(((const uint16_t *)cache)[i]) : ((const float *)cache)[i];
}

typedef struct {
    int64_t Q, K, D, page_size, length; /* query heads, those of keys, their width; positions before the rows */
    int half;
} attention_case;

/* The rows' own keys and values are stored, by both; then both attend to one of the caches. */
static void check_attention(attention_case c) {
    enum { ROWS = 6, REQUESTS = 2, WIDTH = ROWS / REQUESTS };
    int64_t P = (c.length + WIDTH) / c.page_size + 1, slots = (REQUESTS * P + 1) * c.page_size;
    int64_t in_slot = 2 * c.K * c.D, in_queries = c.Q * c.D, pages[128], positions[ROWS], stored[ROWS];
    if (REQUESTS * P > 128) exit(2);
    for (int64_t i = 0; i < REQUESTS * P; i++) pages[i] = REQUESTS * P - i; /* in no handy order */
    for (int64_t r = 0; r < ROWS; r++) {
        positions[r] = c.length + r % WIDTH;
        stored[r] = pages[r / WIDTH * P + positions[r] / c.page_size] * c.page_size + positions[r] % c.page_size;
    }
    float *qkv = floats(ROWS * (c.Q + 2 * c.K) * c.D), *factors = floats(ROWS * 2 * c.D), *queries[2];
    void *caches[2] = {new_cache(slots * in_slot, c.half), NULL};
    size_t bytes = (size_t)(slots * in_slot) * (c.half ? 2 : 4);
    caches[1] = memcpy(some(bytes), caches[0], bytes);
    for (int i = 0; i < 2; i++) {
        queries[i] = some(sizeof(float) * (size_t)(ROWS * in_queries));
        run(i ? isa : "portable",
            (ss_node){.op = SS_ROPE_STORE, .p = {qkv, factors, stored, caches[i], queries[i]},
                      .n = {ROWS, c.Q, c.K, c.D, slots, c.half}}, 1 + i);
    }
    /* With halves, sums that differ in their last bit may round to neighbours. */
    for (int64_t i = 0; i < slots * in_slot; i++) {
        double want = cached(caches[0], i, c.half);
        expect("rope_store, cache", i / in_slot, i % in_slot, cached(caches[1], i, c.half), want, c.half ? 2e-3 : 1e-6);
    }
    for (int64_t i = 0; i < ROWS * in_queries; i++)
        expect("rope_store, queries", i / in_queries, i % in_queries, queries[1][i], queries[0][i], 1e-6);
    ss_node attend = {.op = SS_ATTENTION, .p = {queries[0], caches[0], pages, positions},
                      .n = {ROWS, REQUESTS, P, c.page_size, c.Q, c.K, c.D, c.half}};
    check_floats("attention", attend, 4, ROWS, in_queries, 1e-5);
    free(qkv), free(factors);
    for (int i = 0; i < 2; i++) free(caches[i]), free(queries[i]);
}

int main(int count, char **arguments) {
    isa = count > 1 ? arguments[1] : "portable";
    if (strcmp(ss_choose(isa), isa)) {
        printf("%s: not in this build, or not on this processor\n", isa);
        return 3;
    }
    const int64_t inputs[] = {32, 64, 96, 576}, outputs[] = {1, 15, 16, 17, 48, 100};
    for (int i = 0; i < 4; i++)
        for (int o = 0; o < 6; o++)
            for (int with_more = 0; with_more < 2; with_more++) {
                check_packed(1, inputs[i], outputs[o], with_more);
                check_packed(0, inputs[i], outputs[o], with_more);
            }
    const int64_t widths[] = {1, 7, 8, 63, 64, 65, 200, 577};
    for (int i = 0; i < 8; i++) {
        check_rows(widths[i]);
        check_dense(widths[i], 5);
    }
    check_embedding();
    const int64_t heads[][2] = {{1, 1}, {4, 2}, {9, 3}, {8, 1}}, widths_of_heads[] = {8, 16, 64, 128};
    for (int h = 0; h < 4; h++)
        for (int d = 0; d < 4; d++)
            for (int64_t page_size = 4; page_size <= 64; page_size *= 4)
                for (int half = 0; half < 2; half++)
                    check_attention((attention_case){heads[h][0], heads[h][1], widths_of_heads[d], page_size,
                                                     d * 30 + h, half});
    printf("%s: same results\n", isa);
    return 0;
}
