/* Eight floats at a time, in GCC's vectors: a machine without such registers splits them. */
#ifndef SLIPSTREAM_VECTOR_H
#define SLIPSTREAM_VECTOR_H

#include "slipstream_native.h"

#include <math.h>
#include <string.h>

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

typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));

INLINE f4 halves_sum(f8 v) {
    f4 low, high;
    memcpy(&low, &v, sizeof low);
    memcpy(&high, (const char *)&v + sizeof low, sizeof high);
    return low + high;
}

/* Always in this order, so that a sum depends on its terms alone. */
INLINE float sum8(f8 v) {
    f4 four = halves_sum(v);
    f4 two = four + __builtin_shuffle(four, (i4){2, 3, 0, 1});
    return two[0] + two[1];
}

/* sum8 of four vectors at once, in the same order. */
INLINE f4 sums8(const f8 v[4]) {
    f4 a = halves_sum(v[0]), b = halves_sum(v[1]), c = halves_sum(v[2]), d = halves_sum(v[3]);
    f4 ab = __builtin_shuffle(a, b, (i4){0, 4, 1, 5}) + __builtin_shuffle(a, b, (i4){2, 6, 3, 7});
    f4 cd = __builtin_shuffle(c, d, (i4){0, 4, 1, 5}) + __builtin_shuffle(c, d, (i4){2, 6, 3, 7});
    return __builtin_shuffle(ab, cd, (i4){0, 1, 4, 5}) + __builtin_shuffle(ab, cd, (i4){2, 3, 6, 7});
}

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

/* To half precision, to the nearest, ties to even; too large becomes infinity. */
INLINE uint16_t float_to_half(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00;
    if (bits >= 0x477ff000) return sign | 0x7c00; /* 65520 and more */
    if (bits < 0x38800000) {                      /* below the least normal: count in units of 2^-24 */
        memcpy(&f, &bits, sizeof f);
        return sign | (uint16_t)lrintf(f * 0x1p24f);
    }
    bits += 0xfff + (bits >> 13 & 1);
    return sign | (uint16_t)((bits - 0x38000000) >> 13);
}

#if defined(__F16C__)
#include <immintrin.h>
INLINE f8 widen8(const uint16_t *p) { return (f8)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE void narrow8(uint16_t *out, f8 v) {
    _mm_storeu_si128((__m128i *)out, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__aarch64__)
#include <arm_neon.h>
INLINE f8 widen8(const uint16_t *p) {
    float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(p));
    float32x4_t parts[2] = {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
    f8 v;
    memcpy(&v, parts, sizeof v);
    return v;
}
INLINE void narrow8(uint16_t *out, f8 v) {
    float32x4_t parts[2];
    memcpy(parts, &v, sizeof parts);
    vst1q_u16(out, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(parts[0]), parts[1])));
}
#else
INLINE f8 widen8(const uint16_t *p) {
    f8 v;
    for (int i = 0; i < 8; i++) v[i] = half_to_float(p[i]);
    return v;
}
INLINE void narrow8(uint16_t *out, f8 v) {
    for (int i = 0; i < 8; i++) out[i] = float_to_half(v[i]);
}
#endif

INLINE void narrow(uint16_t *out, const float *x, int64_t count) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) narrow8(out + i, load8(x + i));
    for (; i < count; i++) out[i] = float_to_half(x[i]);
}

/* The part of `count` things that is this thread's: [*begin, *end). */
INLINE void share(int64_t count, int thread, int threads, int64_t *begin, int64_t *end) {
    *begin = count * thread / threads;
    *end = count * (thread + 1) / threads;
}

#endif
