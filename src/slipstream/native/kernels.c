/* The kernels, compiled once for each instruction set: SS_TABLE names the table of this build. */
#include "attention.h"
#include "linear.h"
#include "rounds.h"
#include "rows.h"

const ss_kernel SS_TABLE[SS_OPS] = {
    [SS_LINEAR_Q4] = linear_q4,
    [SS_LINEAR_Q8] = linear_q8,
    [SS_LINEAR_F32] = linear_f32,
    [SS_LINEAR_BF16] = linear_bf16,
    [SS_EMBED_Q8] = embed_q8,
    [SS_EMBED_BF16] = embed_bf16,
    [SS_GATHER] = gather,
    [SS_COPY] = copy,
    [SS_RMS_NORM] = rms_norm,
    [SS_ROPE_STORE] = rope_store,
    [SS_ATTENTION] = attention,
    [SS_GATED_SILU] = gated_silu,
    [SS_ARGMAX] = argmax,
    [SS_PLAN_ROWS] = plan_rows,
    [SS_VERIFY_IDS] = verify_ids,
    [SS_ACCEPT_COUNTS] = accept_counts,
    [SS_COMMIT] = commit,
    [SS_TOP_SHARE] = top_share,
    [SS_LAST_ROWS] = last_rows,
    [SS_PUT_ROWS] = put_rows,
};
