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

/* Always in this order, so that a sum depends on its terms alone. */
INLINE float sum8(f8 v) {
    typedef float f4 __attribute__((vector_size(16)));
    typedef int32_t i4 __attribute__((vector_size(16)));
    f4 low, high;
    memcpy(&low, &v, sizeof low);
    memcpy(&high, (const char *)&v + sizeof low, sizeof high);
    f4 four = low + high;
    f4 two = four + __builtin_shuffle(four, (i4){2, 3, 0, 1});
    return two[0] + two[1];
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

/* The part of `count` things that is this thread's: [*begin, *end). */
INLINE void share(int64_t count, int thread, int threads, int64_t *begin, int64_t *end) {
    *begin = count * thread / threads;
    *end = count * (thread + 1) / threads;
}

#endif
