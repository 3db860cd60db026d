/* The team of threads, and what Python calls: ss_run. */
#define _GNU_SOURCE
#include "slipstream_native.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_THREADS = 64 };

/* A pause is some 10 to 40 ns. A thread that waits offers its core after SPINS of them: two threads of the team may
 * have been put on one core, beside another busy process, and then the one that is waited for cannot run. */
enum { SPINS = 200 };
/* Offers before a worker without a job sleeps: some 0.3 ms, longer than the gap between two graphs of a round. */
enum { IDLE_OFFERS = 100 };

typedef struct {
    atomic_int arrived;
    atomic_uint phase;
} barrier;

static struct {
    pthread_mutex_t entry; /* one ss_run at a time */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int workers;
    int sleeping;
    atomic_uint generation;
    /* The job, written before generation moves. */
    const ss_node *nodes;
    int64_t count;
    int threads;
    const ss_times *times;
    barrier between_nodes; /* of the threads that run the job */
    barrier in_branch[SS_BRANCHES];
    barrier at_end; /* of the whole team */
    unsigned seen_at_start[MAX_THREADS];
} team = {.entry = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static atomic_int failed;

static __thread void *scratch;
static __thread int64_t scratch_bytes;

void *ss_scratch(int64_t bytes) {
    if (bytes > scratch_bytes) {
        free(scratch);
        scratch_bytes = 0;
        int64_t rounded = (bytes + 4095) / 4096 * 4096;
        scratch = aligned_alloc(64, (size_t)rounded);
        if (!scratch) return NULL;
        scratch_bytes = rounded;
    }
    return scratch;
}

void ss_fail(void) { atomic_store_explicit(&failed, 1, memory_order_relaxed); }

static inline void pause_core(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void meet(barrier *at, int threads) {
    if (threads == 1) return;
    unsigned phase = atomic_load_explicit(&at->phase, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&at->arrived, 1, memory_order_acq_rel) == threads - 1) {
        atomic_store_explicit(&at->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&at->phase, phase + 1, memory_order_release);
        return;
    }
    for (unsigned spins = 0; atomic_load_explicit(&at->phase, memory_order_acquire) == phase; spins++) {
        pause_core();
        if (spins % SPINS == SPINS - 1) sched_yield();
    }
}

/* The clock of one thread: a node's time is from the end of the one before it to its own, so waits are in it. */
typedef struct {
    const ss_times *times; /* NULL: this thread measures nothing */
    int64_t last;
    int32_t group;
    int leads_all;
} clock_state;

static void took(clock_state *clock, const ss_node *node) {
    if (!clock->times) return;
    int64_t now = now_ns();
    if (clock->leads_all) clock->times->spent[node->op] += now - clock->last;
    if (node->group != clock->group) clock->times->began[node->group] = clock->last;
    clock->times->ended[node->group] = now;
    clock->group = node->group;
    clock->last = now;
}

/* This thread's part of a section that begins at node i; returns the first node behind it. Each branch's first thread
 * tells its time; the wait of the calling thread for the other branches is nobody's. */
static int64_t run_section(const ss_node *nodes, int64_t i, int64_t count, int thread, int threads,
                           const ss_times *times, clock_state *callers) {
    int branches = nodes[i].branches, branch = thread * branches / threads, section = nodes[i].section;
    int first = (branch * threads + branches - 1) / branches;
    int members = ((branch + 1) * threads + branches - 1) / branches - first;
    clock_state own = {thread == first ? times : NULL, times ? now_ns() : 0, -1, 0};
    clock_state *clock = thread == 0 ? callers : &own;
    for (; i < count && nodes[i].branches > 1 && nodes[i].section == section; i++) {
        if (nodes[i].branch != branch) continue;
        ss_kernels[nodes[i].op](nodes + i, thread - first, members);
        meet(&team.in_branch[branch], members);
        took(clock, nodes + i);
    }
    meet(&team.between_nodes, threads);
    if (callers->times) callers->last = now_ns();
    return i;
}

static void run_share(const ss_node *nodes, int64_t count, int thread, int threads, const ss_times *times) {
    clock_state clock = {thread == 0 ? times : NULL, times ? now_ns() : 0, -1, 1};
    for (int64_t i = 0; i < count;) {
        if (nodes[i].branches > 1 && nodes[i].branches <= threads) {
            i = run_section(nodes, i, count, thread, threads, times, &clock);
            continue;
        }
        ss_kernels[nodes[i].op](nodes + i, thread, threads);
        meet(&team.between_nodes, threads);
        took(&clock, nodes + i++);
    }
}

static void *work(void *argument) {
    int thread = (int)(intptr_t)argument;
    unsigned seen = team.seen_at_start[thread];
    for (;;) {
        unsigned current;
        int spins = 0;
        while ((current = atomic_load_explicit(&team.generation, memory_order_acquire)) == seen) {
            pause_core();
            if (++spins % SPINS == 0) sched_yield();
            if (spins < SPINS * IDLE_OFFERS) continue;
            pthread_mutex_lock(&team.lock);
            team.sleeping++;
            while (atomic_load_explicit(&team.generation, memory_order_acquire) == seen)
                pthread_cond_wait(&team.wake, &team.lock);
            team.sleeping--;
            pthread_mutex_unlock(&team.lock);
        }
        seen = current;
        if (thread < team.threads) run_share(team.nodes, team.count, thread, team.threads, team.times);
        /* The last barrier keeps the job's memory alive until every worker has left it. */
        meet(&team.at_end, team.workers + 1);
    }
    return NULL;
}

/* A forked child has none of the team's threads, nor the one that may have held a lock: it begins anew. */
static void forget_team(void) {
    team.workers = team.sleeping = 0;
    atomic_store(&team.between_nodes.arrived, 0);
    for (int b = 0; b < SS_BRANCHES; b++) atomic_store(&team.in_branch[b].arrived, 0);
    atomic_store(&team.at_end.arrived, 0);
    pthread_mutex_init(&team.entry, NULL);
    pthread_mutex_init(&team.lock, NULL);
    pthread_cond_init(&team.wake, NULL);
}

static __attribute__((constructor)) void at_load(void) { pthread_atfork(NULL, NULL, forget_team); }

/* Make the team at least `threads` strong; returns how strong it is. */
static int recruit(int threads) {
    while (team.workers + 1 < threads && team.workers + 1 < MAX_THREADS) {
        /* A worker that starts late must not miss the job that it was recruited for. */
        team.seen_at_start[team.workers + 1] = atomic_load(&team.generation);
        pthread_t id;
        pthread_attr_t detached;
        pthread_attr_init(&detached);
        pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        int error = pthread_create(&id, &detached, work, (void *)(intptr_t)(team.workers + 1));
        pthread_attr_destroy(&detached);
        if (error) break;
        team.workers++;
    }
    return team.workers + 1;
}

/* Run nodes in order on `threads` threads, and measure unless times is NULL. Returns 0, or 1 where a kernel met an index
 * out of range or had no memory. */
int ss_run(const ss_node *nodes, int64_t count, int threads, const ss_times *times) {
    pthread_mutex_lock(&team.entry);
    atomic_store_explicit(&failed, 0, memory_order_relaxed);
    if (threads > 1) {
        int strength = recruit(threads);
        threads = threads < strength ? threads : strength;
    }
    if (threads <= 1) {
        run_share(nodes, count, 0, 1, times);
    } else {
        team.nodes = nodes;
        team.count = count;
        team.threads = threads;
        team.times = times;
        pthread_mutex_lock(&team.lock);
        atomic_fetch_add_explicit(&team.generation, 1, memory_order_release);
        if (team.sleeping) pthread_cond_broadcast(&team.wake);
        pthread_mutex_unlock(&team.lock);
        run_share(nodes, count, 0, threads, times);
        meet(&team.at_end, team.workers + 1);
    }
    int result = atomic_load_explicit(&failed, memory_order_relaxed);
    pthread_mutex_unlock(&team.entry);
    return result;
}

int64_t ss_node_bytes(void) { return (int64_t)sizeof(ss_node); }
