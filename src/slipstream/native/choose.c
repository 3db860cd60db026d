/* Which build of the kernels runs: the best that was built and that this processor has, or one asked for. */
#include "slipstream_native.h"

#include <stddef.h>
#include <string.h>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1 << 20) /* the dot product instructions; older headers lack the name */
#endif
#endif

/* One table a build of kernels.c: build.py defines SS_WITH_... for those that it made. */
extern const ss_kernel ss_kernels_portable[SS_OPS];

const ss_kernel *ss_kernels = ss_kernels_portable;

typedef struct {
    const char *isa;
    const ss_kernel *kernels;
    int (*here)(void); /* whether this processor has it */
} choice;

#ifdef SS_WITH_AVX2
extern const ss_kernel ss_kernels_avx2[SS_OPS];
static int have_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#endif
#ifdef SS_WITH_AVXVNNI
extern const ss_kernel ss_kernels_avxvnni[SS_OPS];
static int have_avxvnni(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("avxvnni");
}
#endif
#ifdef SS_WITH_AVX512VNNI
extern const ss_kernel ss_kernels_avx512vnni[SS_OPS];
static int have_avx512vnni(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}
#endif
#ifdef SS_WITH_NEON
extern const ss_kernel ss_kernels_neon[SS_OPS];
static int have_neon(void) { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
#endif
static int always(void) { return 1; }

/* Best first. */
static const choice choices[] = {
#ifdef SS_WITH_AVX512VNNI
    {"avx512vnni", ss_kernels_avx512vnni, have_avx512vnni},
#endif
#ifdef SS_WITH_AVXVNNI
    {"avxvnni", ss_kernels_avxvnni, have_avxvnni},
#endif
#ifdef SS_WITH_AVX2
    {"avx2", ss_kernels_avx2, have_avx2},
#endif
#ifdef SS_WITH_NEON
    {"neon", ss_kernels_neon, have_neon},
#endif
    {"portable", ss_kernels_portable, always},
};

/* Choose the kernels: one of the names above, or NULL for the best. Returns what runs now: "portable" where this
 * processor or this build lacks the one asked for. */
const char *ss_choose(const char *wanted) {
    size_t last = sizeof choices / sizeof *choices - 1, i = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    while (i < last && ((wanted && strcmp(wanted, choices[i].isa)) || !choices[i].here())) i++;
    ss_kernels = choices[i].kernels;
    return choices[i].isa;
}
