/* Sixteen outputs of a packed matrix for R rows: tile_q4 and tile_q8 of the instruction set of this build.
 *
 * R is a constant of each call, so that the compiler keeps the sums in registers; a row's sum is formed in the same
 * order for every R. Sums of 8-bit products are exact; AVX2, AVX-VNNI and NEON then do the same float operations, so
 * they give the same bits for the same codes.
 */
#ifndef SLIPSTREAM_TILES_H
#define SLIPSTREAM_TILES_H

#if defined(__AVX512VNNI__) && defined(__AVX512F__)
#include "tiles_avx512.h"
#elif defined(__AVXVNNI__)
#include "tiles_avxvnni.h"
#elif defined(__AVX2__)
#include "tiles_avx2.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "tiles_neon.h"
#else
#include "tiles_portable.h"
#endif

#endif
