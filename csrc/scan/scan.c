/* A scan's threads, from start to stop. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "scan/scan.h"
#include "shared/doorbell.h"
#include "shared/joining.h"

/* If a thread hardly ever sleeps while it examines names, the source is local. The thread then
 * lowers its own priority permanently, to leave the processor to the job. If a thread often sleeps,
 * the source is remote. The thread then keeps its priority, so that files are filled before the job
 * needs them. */
/* A thread decides whether to lower its priority after it has examined this many names. */
#define LOOKS 64
/* A thread lowers its priority if, on average, it has slept at most once per this many names. */
#define LOOKS_EACH_SLEEP 8

static int stands_back(const struct rusage *begin) {
    struct rusage now;
    if (getrusage(RUSAGE_THREAD, &now) != 0 ||
        (uint64_t)(now.ru_nvcsw - begin->ru_nvcsw) * LOOKS_EACH_SLEEP > monarch_looks())
        return 0;
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);
    return 1;
}

static void *scan_thread(void *arg) {
    struct monarch_scan *s = arg;
    struct monarch_batch *batch = NULL;
    struct rusage begin;
    pthread_setname_np(pthread_self(), "monarch-scan");
    int is_behind = getrusage(RUSAGE_THREAD, &begin) != 0;
    for (struct task *t; (t = monarch_next_task(s, &batch)); free(t)) {
        if (t->names)
            monarch_look_at_names(s, &batch, t);
        else
            monarch_walk_directory(s, &batch, t);
        if (!is_behind && monarch_looks() >= LOOKS)
            is_behind = stands_back(&begin);
    }
    monarch_hand_over_batch(s, &batch);
    monarch_batch_free(batch);
    pthread_mutex_lock(&s->lock);
    s->threads--;
    pthread_mutex_unlock(&s->lock);
    monarch_doorbell_ring(s->doorbell);
    return NULL;
}

/* Corrects the scan's counts after `missing` threads could not be started. These threads were
 * counted as busy, and the running threads may be waiting for them. So wakes the running
 * threads. */
static void lack(struct monarch_scan *s, int started, int missing) {
    s->thread[started] = 0; /* pthread_create may have stored a value here although it has failed */
    pthread_mutex_lock(&s->lock);
    s->busy -= missing;
    s->threads -= missing;
    pthread_cond_broadcast(&s->more_work);
    pthread_mutex_unlock(&s->lock);
    if (!started)
        monarch_count_scan_error(s, EAGAIN);
}

/* --- calls from Python ------------------------------------------------------------------------ */

static void add_first(struct monarch_scan *s, const char *path) {
    struct task *t = monarch_new_task(s, path, 0);
    if (t)
        t->is_first = 1;
    monarch_add_task(s, t);
}

static struct monarch_scan *new_scan(int root, unsigned source, int threads, uint64_t ops_per_s,
                                     uint32_t *doorbell) {
    struct statx x;
    struct monarch_scan *s = calloc(1, sizeof *s + (size_t)(threads + 1) * sizeof(pthread_t));
    /* Only the device is needed, and the kernel knows it. AT_STATX_DONT_SYNC prevents a request to
     * the source's server, because the daemon's loop calls this function and must not wait. */
    if (!s || statx(root, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &x) != 0) {
        free(s);
        return NULL;
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->more_work, NULL);
    pthread_cond_init(&s->may_go_on, NULL);
    pthread_cond_init(&s->room, NULL);
    s->root = root;
    s->source = source;
    s->dev = makedev(x.stx_dev_major, x.stx_dev_minor);
    monarch_pace_init(&s->pace, ops_per_s);
    s->doorbell = doorbell;
    s->busy = s->threads = threads; /* each thread is busy until its first request for a task */
    return s;
}

static struct monarch_scan *begin(struct monarch_scan *s) {
    for (int i = 0, threads = s->threads; i < threads; i++)
        if (pthread_create(&s->thread[i], NULL, scan_thread, s) != 0) {
            lack(s, i, threads - i);
            break;
        }
    return s;
}

struct monarch_scan *monarch_scan_start(int root, unsigned source, int threads, uint64_t ops_per_s,
                                        uint32_t *doorbell) {
    struct monarch_scan *s = new_scan(root, source, threads, ops_per_s, doorbell);
    if (!s)
        return NULL;
    s->is_deep = s->is_whole = 1;
    add_first(s, "");
    return begin(s);
}

struct monarch_scan *monarch_scan_parts(int root, unsigned source, const char *const *directories,
                                        uint64_t n, int is_deep, int threads, uint64_t ops_per_s,
                                        uint32_t *doorbell) {
    struct monarch_scan *s = new_scan(root, source, threads, ops_per_s, doorbell);
    if (!s)
        return NULL;
    s->is_deep = is_deep;
    /* The task that is added last is done first. So the directories are added in reverse order. */
    for (uint64_t i = n; i > 0; i--)
        add_first(s, directories[i - 1]);
    return begin(s);
}

void monarch_scan_skip_known(struct monarch_scan *s, struct monarch_writer *w,
                             const struct monarch_clients *clients, int64_t since_ns) {
    /* under the lock, because the scan's threads read these fields */
    pthread_mutex_lock(&s->lock);
    s->writer = w;
    s->clients = clients;
    s->since_ns = since_ns;
    pthread_mutex_unlock(&s->lock);
}

uint64_t monarch_scan_errors(struct monarch_scan *s, int *error) {
    pthread_mutex_lock(&s->lock);
    uint64_t n = s->errors;
    *error = s->error;
    pthread_mutex_unlock(&s->lock);
    return n;
}

uint64_t monarch_scan_up(const struct monarch_scan *s) {
    return __atomic_load_n(&s->up_ino, __ATOMIC_RELAXED);
}

int monarch_scan_stop(struct monarch_scan *s, int limit_ms) {
    int finished, left = 0;
    struct timespec until = monarch_join_limit(limit_ms);
    pthread_mutex_lock(&s->lock);
    __atomic_store_n(&s->stopping, 1, __ATOMIC_RELAXED);
    monarch_wake_scan(s);
    pthread_cond_broadcast(&s->room);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; s->thread[i]; i++) /* the array ends with a zero, which calloc has written */
        left += !monarch_join(s->thread[i], &until);
    if (left)
        return left;
    for (struct monarch_batch *b; (b = monarch_scan_take(s, &finished));)
        monarch_batch_free(b);
    s->may_look[0] = s->may_look[1] = ALL_NAMES;
    while (monarch_has_tasks(s))
        free(monarch_take_task(s));
    free(s);
    return 0;
}
