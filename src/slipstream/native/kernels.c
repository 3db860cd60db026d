/* The kernels, compiled once for each instruction set: SS_TABLE names the table of this build.
 *
 * Vectors are GCC's, eight floats; on a machine without such registers the compiler splits them. Only the products
 * of 4- and 8-bit codes are written for instruction sets by hand.
 */
#include "slipstream_native.h"

#include <math.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

typedef float f8 __attribute__((vector_size(32)));
typedef int32_t i8x __attribute__((vector_size(32)));

#define INLINE static inline __attribute__((always_inline))

INLINE f8 load8(const float *p) {
    f8 v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE void store8(float *p, f8 v) { memcpy(p, &v, sizeof v); }
INLINE f8 all8(float x) { return (f8){x, x, x, x, x, x, x, x}; }

/* Always in this order, so that a sum depends on its terms alone. */
INLINE float sum8(f8 v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

INLINE f8 max8(f8 a, f8 b) {
    i8x take = a > b;
    return (f8)((take & (i8x)a) | (~take & (i8x)b));
}
INLINE float top8(f8 v) {
    float best = v[0];
    for (int i = 1; i < 8; i++) best = v[i] > best ? v[i] : best;
    return best;
}

/* exp by 2^n and a polynomial (Cephes' expf); relative error below 2e-7 in the range that it is used in. */
INLINE f8 exp8(f8 x) {
    i8x low = x < all8(-87.0f), high = x > all8(88.0f);
    x = (f8)((low & (i8x)all8(-87.0f)) | (~low & (i8x)x));
    x = (f8)((high & (i8x)all8(88.0f)) | (~high & (i8x)x));
    f8 shifted = x * 1.44269504088896341f + 12582912.0f; /* 1.5 * 2^23: rounds to the nearest integer */
    f8 n = shifted - 12582912.0f;
    f8 r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    f8 y = r * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = (y * r) * r + r + 1.0f;
    i8x exponent = ((i8x)shifted << 23);
    return (f8)((i8x)y + exponent);
}

INLINE float half_to_float(uint16_t h) {
    /* Shift the fraction into place; a float multiply then moves the exponent, subnormals included. */
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, bits = (uint32_t)(h & 0x7fff) << 13;
    float f;
    memcpy(&f, &bits, sizeof f);
    f *= 0x1p112f;
    if ((h & 0x7c00) == 0x7c00) f = h & 0x3ff ? NAN : INFINITY;
    memcpy(&bits, &f, sizeof bits);
    bits |= sign;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* The part of `count` things that is this thread's: [*begin, *end). */
INLINE void share(int64_t count, int thread, int threads, int64_t *begin, int64_t *end) {
    *begin = count * thread / threads;
    *end = count * (thread + 1) / threads;
}

/* ---- activations as 8-bit codes in blocks of 32 ---- */

typedef struct {
    const int8_t *codes; /* [rows, inputs] */
    const float *scale;  /* [rows, inputs / 32] */
    const float *sum;    /* [rows, inputs / 32]: scale times the sum of the block's codes */
} quantised;

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

/* ---- products with packed tiles ----
 *
 * tile_q4_R and tile_q8_R give 16 outputs of R rows. R is a constant of each call, so that the compiler keeps the
 * sums in registers; a row's sum is formed in the same order for every R.
 */

#if defined(__AVX512VNNI__) && defined(__AVX512F__)

INLINE __m512i spread(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm512_set1_epi32(four);
}

INLINE void tile_q4(const uint8_t *tile, quantised x, int64_t row, int64_t blocks, int R, float (*out)[SS_TILE]) {
    const __m512i low_half = _mm512_set1_epi8(15);
    __m512 total[4];
    for (int r = 0; r < R; r++) total[r] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, tile += SS_Q4_BYTES) {
        __m512i dot[4];
        for (int r = 0; r < R; r++) dot[r] = _mm512_setzero_si512();
        for (int j = 0; j < 4; j++) {
            __m512i both = _mm512_loadu_si512(tile + 64 * j);
            __m512i low = _mm512_and_si512(both, low_half);
            __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_half);
            for (int r = 0; r < R; r++) {
                const int8_t *codes = x.codes + ((row + r) * blocks + b) * SS_BLOCK + 4 * j;
                dot[r] = _mm512_dpbusd_epi32(dot[r], low, spread(codes));
                dot[r] = _mm512_dpbusd_epi32(dot[r], high, spread(codes + 16));
            }
        }
        __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(tile + SS_Q4_CODES)));
        __m512 least = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(tile + SS_Q4_CODES + 2 * SS_TILE)));
        for (int r = 0; r < R; r++) {
            int64_t at = (row + r) * blocks + b;
            __m512 both_scales = _mm512_mul_ps(scale, _mm512_set1_ps(x.scale[at]));
            total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r]), both_scales, total[r]);
            total[r] = _mm512_fmadd_ps(least, _mm512_set1_ps(x.sum[at]), total[r]);
        }
    }
    for (int r = 0; r < R; r++) _mm512_storeu_ps(out[r], total[r]);
}

INLINE void tile_q8(const uint8_t *tile, quantised x, int64_t row, int64_t blocks, int R, float (*out)[SS_TILE]) {
    /* dpbusd wants one side unsigned: code + 128, and 128 times the sum of the row's codes taken off again. */
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    __m512 total[4];
    for (int r = 0; r < R; r++) total[r] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, tile += SS_Q8_BYTES) {
        __m512i dot[4];
        for (int r = 0; r < R; r++) dot[r] = _mm512_setzero_si512();
        for (int j = 0; j < 8; j++) {
            __m512i codes = _mm512_xor_si512(_mm512_loadu_si512(tile + 64 * j), flip);
            for (int r = 0; r < R; r++)
                dot[r] = _mm512_dpbusd_epi32(dot[r], codes, spread(x.codes + ((row + r) * blocks + b) * SS_BLOCK + 4 * j));
        }
        __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(tile + SS_Q8_CODES)));
        for (int r = 0; r < R; r++) {
            int64_t at = (row + r) * blocks + b;
            __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(dot[r]), _mm512_set1_ps(x.scale[at]));
            value = _mm512_fnmadd_ps(_mm512_set1_ps(128.0f), _mm512_set1_ps(x.sum[at]), value);
            total[r] = _mm512_fmadd_ps(value, scale, total[r]);
        }
    }
    for (int r = 0; r < R; r++) _mm512_storeu_ps(out[r], total[r]);
}

#elif defined(__AVX2__)

INLINE __m256i spread(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm256_set1_epi32(four);
}

/* Both halves of a tile share each spread activation. The sums of eight products stay in 16 bits: eight pairs of
 * 15 * 127 are 30,480, so one widening serves the whole block. */
INLINE void tile_q4(const uint8_t *tile, quantised x, int64_t row, int64_t blocks, int R, float (*out)[SS_TILE]) {
    const __m256i low_half = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256 total[4][2];
    for (int r = 0; r < R; r++) total[r][0] = total[r][1] = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, tile += SS_Q4_BYTES) {
        __m256i dot[4][2];
        for (int r = 0; r < R; r++) dot[r][0] = dot[r][1] = _mm256_setzero_si256();
        for (int j = 0; j < 4; j++) {
            __m256i low[2], high[2];
            for (int half = 0; half < 2; half++) {
                __m256i both = _mm256_loadu_si256((const __m256i *)(tile + 64 * j + 32 * half));
                low[half] = _mm256_and_si256(both, low_half);
                high[half] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low_half);
            }
            for (int r = 0; r < R; r++) {
                const int8_t *codes = x.codes + ((row + r) * blocks + b) * SS_BLOCK + 4 * j;
                __m256i first = spread(codes), second = spread(codes + 16);
                for (int half = 0; half < 2; half++) {
                    dot[r][half] = _mm256_add_epi16(dot[r][half], _mm256_maddubs_epi16(low[half], first));
                    dot[r][half] = _mm256_add_epi16(dot[r][half], _mm256_maddubs_epi16(high[half], second));
                }
            }
        }
        for (int half = 0; half < 2; half++) {
            const uint8_t *scales = tile + SS_Q4_CODES + 16 * half;
            __m256 scale = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)scales));
            __m256 least = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(scales + 2 * SS_TILE)));
            for (int r = 0; r < R; r++) {
                int64_t at = (row + r) * blocks + b;
                __m256 value = _mm256_cvtepi32_ps(_mm256_madd_epi16(dot[r][half], ones));
                __m256 both_scales = _mm256_mul_ps(scale, _mm256_set1_ps(x.scale[at]));
                total[r][half] = _mm256_fmadd_ps(value, both_scales, total[r][half]);
                total[r][half] = _mm256_fmadd_ps(least, _mm256_set1_ps(x.sum[at]), total[r][half]);
            }
        }
    }
    for (int r = 0; r < R; r++) {
        _mm256_storeu_ps(out[r], total[r][0]);
        _mm256_storeu_ps(out[r] + 8, total[r][1]);
    }
}

INLINE void tile_q8(const uint8_t *tile, quantised x, int64_t row, int64_t blocks, int R, float (*out)[SS_TILE]) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256 total[4][2];
    for (int r = 0; r < R; r++) total[r][0] = total[r][1] = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, tile += SS_Q8_BYTES) {
        __m256i dot[4][2];
        for (int r = 0; r < R; r++) dot[r][0] = dot[r][1] = _mm256_setzero_si256();
        for (int j = 0; j < 8; j++) {
            /* maddubs wants one side unsigned: the sign moves over to the activation. */
            __m256i codes[2], sizes[2];
            for (int half = 0; half < 2; half++) {
                codes[half] = _mm256_loadu_si256((const __m256i *)(tile + 64 * j + 32 * half));
                sizes[half] = _mm256_abs_epi8(codes[half]);
            }
            for (int r = 0; r < R; r++) {
                __m256i four = spread(x.codes + ((row + r) * blocks + b) * SS_BLOCK + 4 * j);
                for (int half = 0; half < 2; half++) {
                    __m256i pairs = _mm256_maddubs_epi16(sizes[half], _mm256_sign_epi8(four, codes[half]));
                    dot[r][half] = _mm256_add_epi32(dot[r][half], _mm256_madd_epi16(pairs, ones));
                }
            }
        }
        for (int half = 0; half < 2; half++) {
            __m256 scale = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(tile + SS_Q8_CODES + 16 * half)));
            for (int r = 0; r < R; r++) {
                __m256 both_scales = _mm256_mul_ps(scale, _mm256_set1_ps(x.scale[(row + r) * blocks + b]));
                total[r][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r][half]), both_scales, total[r][half]);
            }
        }
    }
    for (int r = 0; r < R; r++) {
        _mm256_storeu_ps(out[r], total[r][0]);
        _mm256_storeu_ps(out[r] + 8, total[r][1]);
    }
}

#else

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

/* ---- rows ---- */

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

/* p: a, b, out float. n: count. */
static void add(const ss_node *node, int thread, int threads) {
    const float *a = node->p[0], *b = node->p[1];
    float *out = node->p[2];
    int64_t begin, end;
    share(node->n[0], thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) out[i] = a[i] + b[i];
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

/* ---- attention ---- */

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

const ss_kernel SS_TABLE[SS_OPS] = {
    [SS_LINEAR_Q4] = linear_q4,   [SS_LINEAR_Q8] = linear_q8, [SS_LINEAR_F32] = linear_f32,
    [SS_LINEAR_BF16] = linear_bf16, [SS_EMBED_Q8] = embed_q8,     [SS_EMBED_BF16] = embed_bf16, [SS_GATHER] = gather,       [SS_COPY] = copy,
    [SS_RMS_NORM] = rms_norm,     [SS_ROPE_STORE] = rope_store, [SS_ATTENTION] = attention,
    [SS_GATED_SILU] = gated_silu, [SS_ADD] = add,             [SS_ARGMAX] = argmax,
};
