/* slowsource: the control file, and the effect of its settings on operations. slowsource.c includes
 * this file, and also the headers that this file needs. */

/* The kinds of operations. `getattr` includes lookups. `release` includes releases of files and of
 * directories. `other` includes all operations that have no kind of their own: changes of names and
 * attributes, links, extended attributes, statfs, opendir, lseek for holes, fallocate. */
#define KINDS(X) \
    X(getattr) X(open) X(create) X(read) X(write) X(readdir) X(release) X(fsync) X(other)
#define X(name) k_##name,
enum kind { KINDS(X) N_KINDS };
#undef X

#define CONTROL_MAGIC \
    UINT64_C(0x31435253574f4c53) /* the bytes "SLOWSRC1", if the machine is little-endian */
#define CONTROL_VERSION 1

struct control {
    uint64_t magic, version;
    _Atomic uint64_t ready; /* 1 as soon as the kernel has sent the first request */
    _Atomic uint64_t rate;  /* rate of the link [bytes/s]; 0: no limit */
    _Atomic uint64_t fail;  /* errno with which every operation fails; 0: no operation fails */
    /* The latency of each kind of operation. A change also applies to operations that are already
     * waiting. */
    _Atomic uint64_t latency_ns[N_KINDS];
    _Atomic uint64_t count[N_KINDS];
    _Atomic uint64_t bytes_read, bytes_written;
};
static_assert(sizeof(struct control) == (7 + 2 * N_KINDS) * 8, "bump CONTROL_VERSION");

static struct control *control;
/* The link is the bandwidth that all readers and writers share. *link_free_ns is the time at which
 * the link becomes free [ns]. If several mounts share the link, this time is stored in a file that
 * all these mounts map. Otherwise, the time is stored in own_link. */
static _Atomic uint64_t own_link, *link_free_ns = &own_link;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sleep_until(uint64_t when_ns) {
    struct timespec t = {(time_t)(when_ns / 1000000000u), (long)(when_ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
    }
}

/* Waits for the latency of an operation. Waits in steps of 10 ms, so that even a wait of minutes
 * ends soon after the latency is reduced. */
static void wait_latency(enum kind kind) {
    uint64_t start = now_ns(), now = start;
    for (;;) {
        uint64_t end = start + control->latency_ns[kind];
        if (now >= end)
            return;
        sleep_until(end < now + 10000000u ? end : now + 10000000u);
        now = now_ns();
    }
}

/* Waits as long as n bytes need on the shared link. Divides the n bytes into pieces that need about
 * 10 ms each, so that waiting readers take turns and a new rate takes effect soon. */
static void wait_link(uint64_t n) {
    while (n) {
        uint64_t rate = control->rate, piece = rate / 100 > 512 ? rate / 100 : 512;
        if (!rate)
            return;
        if (piece > n)
            piece = n;
        uint64_t now = now_ns(), free = *link_free_ns, end;
        do
            end = (free < now ? now : free) + piece * 1000000000u / rate;
        while (!atomic_compare_exchange_weak(link_free_ns, &free, end));
        sleep_until(end);
        n -= piece;
    }
}

/* Counts an operation and waits for its latency. If control->fail is an errno, replies to the
 * request with this errno and returns 1. If control->fail is 0, returns 0. */
static int refused(fuse_req_t req, enum kind kind) {
    control->count[kind]++;
    wait_latency(kind);
    int error = (int)control->fail;
    return error ? (fuse_reply_err(req, error), 1) : 0;
}
