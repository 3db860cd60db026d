/* What the tiles of every instruction set share: the activations' form, and how weights are fetched. */
#ifndef SLIPSTREAM_PACKED_H
#define SLIPSTREAM_PACKED_H

#include "vector.h"

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

#endif
