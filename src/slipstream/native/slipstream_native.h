/* Native CPU kernels: nodes, the kernels' common interface, the team of threads.
 *
 * A node is one operation over fixed addresses. Every kernel is called by all threads of the team with the same
 * node and does its share; the team meets at a barrier after each node, so a node may read what any thread wrote
 * in an earlier one.
 *
 * Nodes of independent branches may run side by side: neighbouring nodes with the same section and more than one branch.
 * The team splits over the branches and meets again behind the section.
 *
 * A row of a result depends on that row of the input alone, and on nothing that says how many rows or threads
 * there are: each row is computed by the same instructions in the same order.
 */
#ifndef SLIPSTREAM_NATIVE_H
#define SLIPSTREAM_NATIVE_H

#include <stdint.h>

enum { SS_POINTERS = 8, SS_SIZES = 10, SS_BRANCHES = 8 };

/* Mirrored by slipstream/native/node.py, which tests hold to this size. */
typedef struct {
    int32_t op;
    int32_t group;    /* whose time this node's counts to */
    int32_t section;  /* of neighbours that share branches */
    int16_t branch;   /* 0 .. branches - 1 */
    int16_t branches; /* 1: the whole team works on it */
    void *p[SS_POINTERS];
    int64_t n[SS_SIZES];
    double f;
} ss_node;

enum ss_op {
    SS_LINEAR_Q4,
    SS_LINEAR_Q8,
    SS_LINEAR_F32,
    SS_LINEAR_BF16,
    SS_EMBED_Q8,
    SS_EMBED_BF16,
    SS_GATHER,
    SS_COPY,
    SS_RMS_NORM,
    SS_ROPE_STORE,
    SS_ATTENTION,
    SS_GATED_SILU,
    SS_ARGMAX,
    SS_PLAN_ROWS,
    SS_VERIFY_IDS,
    SS_ACCEPT_COUNTS,
    SS_COMMIT,
    SS_TOP_SHARE,
    SS_LAST_ROWS,
    SS_PUT_ROWS,
    SS_OPS
};

/* What a run measures, in ns of the monotonic clock. */
typedef struct {
    int64_t *spent; /* [SS_OPS]: added to; the calling thread's time, waits included */
    int64_t *began; /* [groups]: when the group's first node began */
    int64_t *ended; /* [groups]: when its last node ended */
} ss_times;

typedef void (*ss_kernel)(const ss_node *node, int thread, int threads);

/* The table of kernels that runs: the portable one until ss_choose says otherwise (choose.c). */
extern __attribute__((visibility("hidden"))) const ss_kernel *ss_kernels;

/* Scratch memory of the calling thread, at least `bytes`, 64-byte aligned; NULL when memory is out. It stays
 * valid until the thread asks again. */
void *ss_scratch(int64_t bytes);

/* A kernel that could not do its work says so here; ss_run then returns non-zero. */
void ss_fail(void);

/* Outputs a tile of a packed matrix covers, inputs a block covers. */
enum { SS_TILE = 16, SS_BLOCK = 32 };

/* Packed Q4 block of a tile: 4 x 64 bytes of codes, then 16 half scales, 16 half minima. In byte vector j, the
 * four bytes of output o hold inputs 4 j .. 4 j + 3 in their low and 16 + 4 j .. in their high halves. */
enum { SS_Q4_CODES = 256, SS_Q4_BYTES = SS_Q4_CODES + 4 * SS_TILE };

/* Packed Q8 block of a tile: 8 x 64 bytes of codes (output o, inputs 4 j ..), then 16 half scales. */
enum { SS_Q8_CODES = 512, SS_Q8_BYTES = SS_Q8_CODES + 2 * SS_TILE };

#endif
