/* Sixteen outputs of a packed matrix for R rows, for each instruction set.
 *
 * R is a constant of each call, so that the compiler keeps the sums in registers; a row's sum is formed in the same
 * order for every R.
 */
#ifndef SLIPSTREAM_TILES_H
#define SLIPSTREAM_TILES_H

#include "vector.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

/* Activations as 8-bit codes in blocks of 32. */
typedef struct {
    const int8_t *codes; /* [rows, inputs] */
    const float *scale;  /* [rows, inputs / 32] */
    const float *sum;    /* [rows, inputs / 32]: scale times the sum of the block's codes */
} quantised;

/* The activations from `row` on. */
INLINE quantised from_row(quantised x, int64_t row, int64_t blocks) {
    return (quantised){x.codes + row * blocks * SS_BLOCK, x.scale + row * blocks, x.sum + row * blocks};
}

/* Weights are read once, front to back. The processor's own prefetcher stops at the end of each 4 KiB page, which is
 * less than one tile; measured best of 1 to 4 KiB ahead. */
enum { TILE_AHEAD = 2048 };

INLINE void ahead_of(const uint8_t *block, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(block + TILE_AHEAD + i);
}

#define PRAGMA(x) _Pragma(#x)
#define UNROLL(n) PRAGMA(GCC unroll n)

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

/* Keeps the compiler from regrouping sums: it would hold all products of a block at once, and spill them. */
#define HOLD(v) __asm__("" : "+x"(v))

/* Sixteen 16-bit scales, or minima, as floats. */
INLINE void widen_halves(const uint8_t *halves, __m256 out[2]) {
    out[0] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)halves));
    out[1] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(halves + 16)));
}

/* Both halves of a tile share each spread activation. The sums of eight products stay in 16 bits: eight pairs of
 * 15 * 127 are 30,480, so one widening serves the whole block. */
INLINE void tile_q4(const uint8_t *tile, quantised x, int64_t row, int64_t blocks, int R, float (*out)[SS_TILE]) {
    const __m256i low_half = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256 total[4][2];
    for (int r = 0; r < R; r++) total[r][0] = total[r][1] = _mm256_setzero_ps();
    x = from_row(x, row, blocks);
    for (int64_t b = 0; b < blocks; b++, tile += SS_Q4_BYTES) {
        __m256i dot[4][2];
        ahead_of(tile, SS_Q4_BYTES);
        for (int r = 0; r < R; r++) dot[r][0] = dot[r][1] = _mm256_setzero_si256();
        UNROLL(8) for (int j = 0; j < 8; j++) {
            /* Bytes j / 2 of the low halves, then of the high ones. */
            __m256i w[2];
            for (int half = 0; half < 2; half++) {
                w[half] = _mm256_loadu_si256((const __m256i *)(tile + 64 * (j / 2) + 32 * half));
                if (j % 2) w[half] = _mm256_srli_epi16(w[half], 4);
                w[half] = _mm256_and_si256(w[half], low_half);
            }
            for (int r = 0; r < R; r++) {
                __m256i four = spread(x.codes + (r * blocks + b) * SS_BLOCK + 4 * (j / 2) + 16 * (j % 2));
                for (int half = 0; half < 2; half++) {
                    dot[r][half] = _mm256_add_epi16(dot[r][half], _mm256_maddubs_epi16(w[half], four));
                    HOLD(dot[r][half]);
                }
            }
        }
        __m256 scale[2], least[2];
        widen_halves(tile + SS_Q4_CODES, scale);
        widen_halves(tile + SS_Q4_CODES + 2 * SS_TILE, least);
        for (int half = 0; half < 2; half++)
            for (int r = 0; r < R; r++) {
                int64_t at = r * blocks + b;
                __m256 value = _mm256_cvtepi32_ps(_mm256_madd_epi16(dot[r][half], ones));
                __m256 both_scales = _mm256_mul_ps(scale[half], _mm256_set1_ps(x.scale[at]));
                total[r][half] = _mm256_fmadd_ps(value, both_scales, total[r][half]);
                total[r][half] = _mm256_fmadd_ps(least[half], _mm256_set1_ps(x.sum[at]), total[r][half]);
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
    x = from_row(x, row, blocks);
    for (int64_t b = 0; b < blocks; b++, tile += SS_Q8_BYTES) {
        __m256i dot[4][2];
        ahead_of(tile, SS_Q8_BYTES);
        for (int r = 0; r < R; r++) dot[r][0] = dot[r][1] = _mm256_setzero_si256();
        UNROLL(8) for (int j = 0; j < 8; j++) {
            /* maddubs wants one side unsigned: the sign moves over to the activation. */
            for (int half = 0; half < 2; half++) {
                __m256i codes = _mm256_loadu_si256((const __m256i *)(tile + 64 * j + 32 * half));
                __m256i sizes = _mm256_abs_epi8(codes);
                for (int r = 0; r < R; r++) {
                    __m256i four = spread(x.codes + (r * blocks + b) * SS_BLOCK + 4 * j);
                    __m256i pairs = _mm256_maddubs_epi16(sizes, _mm256_sign_epi8(four, codes));
                    dot[r][half] = _mm256_add_epi32(dot[r][half], _mm256_madd_epi16(pairs, ones));
                    HOLD(dot[r][half]);
                }
            }
        }
        __m256 scale[2];
        widen_halves(tile + SS_Q8_CODES, scale);
        for (int half = 0; half < 2; half++)
            for (int r = 0; r < R; r++) {
                __m256 both_scales = _mm256_mul_ps(scale[half], _mm256_set1_ps(x.scale[r * blocks + b]));
                total[r][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r][half]), both_scales, total[r][half]);
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

#endif
