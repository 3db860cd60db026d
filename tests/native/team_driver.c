/* Runs dependent nodes and independent branches again and again on teams of changing size: for ThreadSanitizer, see
 * test_sanitizers.py. */
#include "slipstream_native.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int ss_run(const ss_node *nodes, int64_t count, int threads, const ss_times *times);

enum { ROWS = 4, INPUTS = 64, OUTPUTS = 48, BRANCHES = 3, GROUPS = 5 };

static float *filled(int count, int period) {
    float *values = malloc(sizeof(float) * (size_t)count);
    for (int i = 0; i < count; i++) values[i] = (float)(i % period);
    return values;
}

int main(void) {
    float *weight = filled(OUTPUTS * INPUTS, 7), *x = filled(ROWS * INPUTS, 5), *gain = filled(INPUTS, 3);
    float *normed = filled(ROWS * INPUTS, 1), *out = filled(ROWS * OUTPUTS, 1), first[ROWS * OUTPUTS];
    ss_node nodes[2 + 2 * BRANCHES] = {
        {.op = SS_RMS_NORM, .branches = 1, .p = {x, gain, normed}, .n = {ROWS, INPUTS}, .f = 1e-5},
    };
    float *parts[BRANCHES];
    for (int b = 0; b < BRANCHES; b++) {
        float *inner = filled(ROWS * INPUTS, 1);
        parts[b] = filled(ROWS * INPUTS, 1);
        ss_node *at = nodes + 1 + 2 * b;
        at[0] = (ss_node){.op = SS_RMS_NORM, .group = 1 + b, .section = 1, .branch = (int16_t)b, .branches = BRANCHES,
                          .p = {normed, gain, inner}, .n = {ROWS, INPUTS}, .f = 1e-5};
        at[1] = at[0];
        at[1].p[0] = inner;
        at[1].p[2] = parts[b];
    }
    nodes[1 + 2 * BRANCHES] = (ss_node){.op = SS_LINEAR_F32, .group = GROUPS - 1, .branches = 1,
                                        .p = {parts[BRANCHES - 1], weight, out}, .n = {ROWS, INPUTS, OUTPUTS}};
    int64_t spent[SS_OPS] = {0}, began[GROUPS], ended[GROUPS];
    ss_times times = {spent, began, ended};
    const int threads[] = {1, 2, 4, 2, 3, 1, 8, 5};
    for (int run = 0; run < 400; run++) {
        if (ss_run(nodes, 2 + 2 * BRANCHES, threads[run % 8], &times)) return 1;
        for (int i = 0; i < ROWS * OUTPUTS; i++) {
            if (run == 0) first[i] = out[i];
            if (out[i] != first[i]) return 2; /* the same in any team */
        }
        for (int g = 0; g < GROUPS; g++)
            if (began[g] > ended[g]) return 3;
        for (int g = 1; g <= BRANCHES; g++)
            if (began[g] < began[0] || ended[g] > ended[GROUPS - 1]) return 4;
        if (run % 100 == 50) usleep(3000); /* long enough for the team to sleep */
    }
    puts("same results");
    return 0;
}
