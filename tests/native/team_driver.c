/* Runs two dependent nodes again and again on teams of changing size: for ThreadSanitizer, see test_sanitizers.py. */
#include "slipstream_native.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int ss_run(const ss_node *nodes, int64_t count, int threads, int64_t *spent);

enum { ROWS = 4, INPUTS = 64, OUTPUTS = 48 };

static float *filled(int count, int period) {
    float *values = malloc(sizeof(float) * (size_t)count);
    for (int i = 0; i < count; i++) values[i] = (float)(i % period);
    return values;
}

int main(void) {
    float *weight = filled(OUTPUTS * INPUTS, 7), *x = filled(ROWS * INPUTS, 5), *gain = filled(INPUTS, 3);
    float *normed = filled(ROWS * INPUTS, 1), *out = filled(ROWS * OUTPUTS, 1), first[ROWS * OUTPUTS];
    ss_node nodes[2] = {
        {SS_RMS_NORM, {x, gain, normed}, {ROWS, INPUTS}, 1e-5},
        {SS_LINEAR_F32, {normed, weight, out}, {ROWS, INPUTS, OUTPUTS}, 0},
    };
    int64_t spent[SS_OPS] = {0};
    const int threads[] = {1, 2, 4, 2, 3, 1, 8, 2};
    for (int run = 0; run < 400; run++) {
        if (ss_run(nodes, 2, threads[run % 8], spent)) return 1;
        for (int i = 0; i < ROWS * OUTPUTS; i++) {
            if (run == 0) first[i] = out[i];
            if (out[i] != first[i]) return 2; /* the same in any team */
        }
        if (run % 100 == 50) usleep(3000); /* long enough for the team to sleep */
    }
    puts("same results");
    return 0;
}
