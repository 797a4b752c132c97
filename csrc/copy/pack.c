/* Reads files from a pack (pack.h). A member of the pack is called ordered while an order to fill
 * its file waits for it. A window is a part of the pack that is read into memory at once. It
 * contains ordered members that are close together. Orders then copy their files from the
 * window. */
#include "copy/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "copy/flow.h"
#include "copy/source_file.h"
#include "shared/buffer.h"
#include "shared/clock.h"
#include "shared/xxh3.h"

/* Maximum length [bytes] of a window, counted from the beginning of its first page. */
#define WINDOW_BYTES MONARCH_CHUNK
/* Maximum length [bytes] of a window that is read for a file in use. It is smaller than
 * WINDOW_BYTES, because the program waits until the whole window is read. */
#define SHORT_WINDOW_BYTES (256UL * 1024)
/* Maximum number of windows in memory. A window stays in memory while threads copy from it, or
 * while orders wait for members in it. */
#define WINDOWS 32
/* A window also contains the gaps between its ordered members. A gap of at most this size [bytes],
 * such as a header, is always accepted. A larger gap must not exceed the size of all ordered
 * members before it in the window. So at most about half of a window is read in vain. */
#define JOINED_BYTES (16UL * 1024)
/* Ordered members are looked for among this many members before and after a window. Threads do not
 * always begin orders in the pack's sequence, so members before the window may be ordered too. */
#define LOOKS_BACK 64
/* After a failed read, the pack is not read again for this long [ns]. */
#define RETRY_NS 10000000000ULL
/* While a thread waits for another thread to read a window, it checks at this interval [ns] whether
 * the engine is stopping. */
#define LOOK_NS 50000000L

enum window_state { EMPTY, READING, READY };

struct window {
    enum window_state state;
    uint64_t at, length; /* in the pack */
    char *bytes;
    unsigned users; /* number of threads that copy from the window */
    uint32_t left;  /* number of members of the window for which orders still wait */
    uint64_t used;  /* value of pack.uses when the window was last used */
};

struct pack {
    int fd;
    struct statx identity; /* attributes of the pack when the daemon opened it */
    uint64_t count;
    struct monarch_member *members; /* sorted by their positions in the pack */
    uint64_t slots;                 /* a power of 2 */
    uint32_t *slot;                 /* hash table: index + 1 of a member; 0: empty */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* broadcast after each read of a window */
    int error;              /* under the lock: errno of the last read, or 0; ESTALE is final */
    uint64_t retry_ns;      /* under the lock: after an error, no read is tried before this time */
    uint64_t uses;
    uint8_t *is_ordered; /* under the lock, per member: whether an order waits for it */
    struct window window[WINDOWS];
};

/* --- members ---------------------------------------------------------------------------------- */

static int64_t find(const struct pack *p, uint64_t hash, uint64_t size, int64_t mtime_ns) {
    for (uint64_t i = hash & (p->slots - 1); p->slot[i]; i = (i + 1) & (p->slots - 1)) {
        const struct monarch_member *m = &p->members[p->slot[i] - 1];
        if (m->hash == hash)
            return m->size == size && m->mtime_ns == mtime_ns ? (int64_t)p->slot[i] - 1 : -1;
    }
    return -1;
}

/* Fills the hash table. If several members have the same name, the table contains the last one,
 * which is also the one that tar extracts. */
static void index_members(struct pack *p) {
    for (uint64_t n = 0; n < p->count; n++) {
        uint64_t i = p->members[n].hash & (p->slots - 1);
        while (p->slot[i] && p->members[p->slot[i] - 1].hash != p->members[n].hash)
            i = (i + 1) & (p->slots - 1);
        p->slot[i] = (uint32_t)n + 1;
    }
}

/* Makes a pack, which takes over the descriptor. Returns NULL if memory is exhausted; then the
 * caller must still close the descriptor. */
static struct pack *new_pack(int fd, uint64_t n, const struct monarch_member *members) {
    struct pack *p = calloc(1, sizeof *p);
    uint64_t slots = 2;
    while (slots < n * 2)
        slots *= 2;
    if (!p)
        return NULL;
    p->fd = -1;
    p->count = n;
    p->slots = slots;
    p->members = malloc((n ? n : 1) * sizeof *members);
    p->slot = calloc(slots, sizeof *p->slot);
    p->is_ordered = calloc(n ? n : 1, 1);
    p->lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    p->changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    if (!p->members || !p->slot || !p->is_ordered) {
        monarch_pack_free(p);
        return NULL;
    }
    p->fd = fd;
    memcpy(p->members, members, n * sizeof *members);
    index_members(p);
    /* turns the kernel's read-ahead off, because read_window requests exactly the bytes that are
     * needed */
    posix_fadvise(p->fd, 0, 0, POSIX_FADV_RANDOM);
    return p;
}

void monarch_pack_free(struct pack *p) {
    if (!p)
        return;
    for (int i = 0; i < WINDOWS; i++)
        free(p->window[i].bytes);
    if (p->fd >= 0)
        close(p->fd);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    free(p->members);
    free(p->slot);
    free(p->is_ordered);
    free(p);
}

/* Reads the pack's attributes from the server, because the kernel's cached attributes may be older
 * than the bytes that were read. Returns 0 or -errno. */
static int identity_of(int fd, struct statx *x) {
    unsigned mask = STATX_TYPE | STATX_SIZE | STATX_MTIME | STATX_CTIME;
    return statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, mask, x) == 0 ? 0 : -errno;
}

static int64_t ns(struct statx_timestamp t) { return monarch_time_ns(t.tv_sec, t.tv_nsec); }

int monarch_engine_pack(struct monarch_engine *e, unsigned source, int fd, uint64_t size,
                        int64_t mtime_ns, uint64_t n, const struct monarch_member *members) {
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return -errno;
    struct pack *p = n < UINT32_MAX ? new_pack(own, n, members) : NULL;
    if (!p) {
        close(own);
        return -ENOMEM;
    }
    int error = identity_of(p->fd, &p->identity);
    if (!error && (p->identity.stx_size != size || ns(p->identity.stx_mtime) != mtime_ns))
        error = -ESTALE;
    if (error)
        monarch_pack_free(p);
    else
        e->pack[source] = p;
    return error;
}

int monarch_engine_pack_error(struct monarch_engine *e, unsigned source) {
    struct pack *p = e->pack[source];
    if (!p)
        return 0;
    pthread_mutex_lock(&p->lock);
    int error = p->error;
    pthread_mutex_unlock(&p->lock);
    return error;
}

static int is_in_group(const struct monarch_control *c, uint32_t gid) {
    for (uint32_t i = 0; i < c->groups && i < MONARCH_MAX_GROUPS; i++)
        if (c->group[i] == gid)
            return 1;
    return 0;
}

/* Returns whether the file's mode lets the session's user read the file. This user can read the
 * pack, but perhaps not the file itself. */
static int may_read(const struct monarch_engine *e, const struct monarch_entry *entry) {
    const struct monarch_control *c = e->control;
    if (!c || c->reads_everything)
        return 1;
    if (entry->uid == c->owner)
        return (entry->mode & S_IRUSR) != 0;
    return (entry->mode & (is_in_group(c, entry->gid) ? S_IRGRP : S_IROTH)) != 0;
}

static int64_t member_of(const struct monarch_engine *e, const struct monarch_entry *entry,
                         const char *path) {
    const struct pack *p = e->pack[entry->source];
    if (!p || entry->kind != MONARCH_FILE || entry->size > MONARCH_UNIT ||
        entry->size > monarch_unit_of(entry->size, e->block_bytes) || !may_read(e, entry))
        return -1;
    return find(p, monarch_xxh3(path, entry->path_len), entry->size, entry->mtime_ns);
}

void monarch_engine_pack_order(struct monarch_engine *e, const struct monarch_catalog *c,
                               uint64_t n, const uint64_t *ids, int64_t *places) {
    for (uint64_t i = 0; i < n; i++) {
        const struct monarch_entry *entry = &monarch_entries(c)[ids[i]];
        places[i] = member_of(e, entry, monarch_pool(c, entry->path));
    }
}

/* --- windows ---------------------------------------------------------------------------------- */

static uint64_t end_of(const struct monarch_member *m) { return m->offset + m->size; }

static int holds(const struct window *w, const struct monarch_member *m) {
    return w->state != EMPTY && w->at <= m->offset && end_of(m) <= w->at + w->length;
}

static struct window *window_of(struct pack *p, const struct monarch_member *m) {
    for (int i = 0; i < WINDOWS; i++)
        if (holds(&p->window[i], m))
            return &p->window[i];
    return NULL;
}

/* Notes that an order waits for the member. The caller holds the lock. */
static void await_member(struct pack *p, uint32_t member) {
    struct window *w = window_of(p, &p->members[member]);
    if (!p->is_ordered[member] && w)
        w->left++;
    p->is_ordered[member] = 1;
}

void monarch_pack_meet(struct monarch_engine *e, struct job *job) {
    int64_t member = member_of(e, &job->entry, job->path);
    if (member < 0)
        return;
    struct pack *p = e->pack[job->entry.source];
    pthread_mutex_lock(&p->lock);
    if (p->error != ESTALE) {
        job->pack = p;
        job->member = (uint32_t)member;
        /* The order asks a peer first, and needs the member only if the peer fails. So do not note
         * yet that the order waits for it. */
        if (job->peer[0] < 0)
            await_member(p, job->member);
    }
    pthread_mutex_unlock(&p->lock);
}

static void empty(struct window *w) {
    free(w->bytes);
    *w = (struct window){.state = EMPTY};
}

/* Returns an empty window. If none is empty, first empties the least recently used window that no
 * thread uses and no order needs. Returns NULL if there is no such window. A window that an order
 * needs is kept, because it would have to be read again. */
static struct window *free_window(struct pack *p) {
    struct window *oldest = NULL;
    for (int i = 0; i < WINDOWS; i++) {
        struct window *w = &p->window[i];
        if (w->state == EMPTY)
            return w;
        if (w->state == READY && !w->users && !w->left && (!oldest || w->used < oldest->used))
            oldest = w;
    }
    if (oldest)
        empty(oldest);
    return oldest;
}

/* Returns whether an order waits for the member and no window holds it. */
static int is_to_read(struct pack *p, uint64_t member) {
    return p->is_ordered[member] && !window_of(p, &p->members[member]);
}

/* Goes back from `member` over members that must be read (is_to_read), at most LOOKS_BACK of them.
 * Returns the last one that it reaches, or `member` itself. */
static uint64_t first_beside(struct pack *p, uint64_t member) {
    for (int n = 0; n < LOOKS_BACK && member && is_to_read(p, member - 1); n++)
        member--;
    return member;
}

/* Sets the bounds of a window. It begins with this member and ends with an ordered member. Extends
 * the window to further ordered members, and stops in three cases: the window would exceed `most`
 * bytes, a gap is too large (JOINED_BYTES), or another window contains the next ordered member. */
static void extend(struct pack *p, struct window *w, uint64_t member, uint64_t most) {
    const struct monarch_member *m = p->members;
    uint64_t end = end_of(&m[member]), wanted = m[member].size;
    w->at = m[member].offset;
    w->left = p->is_ordered[member];
    uint64_t last = w->at / MONARCH_PAGE_BYTES * MONARCH_PAGE_BYTES + most;
    for (uint64_t i = member + 1; i < p->count && end_of(&m[i]) <= last; i++) {
        uint64_t between = m[i].offset - end;
        int is_far = between > JOINED_BYTES && between > wanted;
        if (is_far || (p->is_ordered[i] && !is_to_read(p, i)))
            break;
        if (!p->is_ordered[i])
            continue;
        end = end_of(&m[i]);
        wanted += m[i].size;
        w->left++;
    }
    w->length = end - w->at;
}

/* Prepares a window that contains this member, but does not read it yet (fill_window). Returns NULL
 * if no window is free, or if memory is exhausted. */
static struct window *begin_window(struct pack *p, uint64_t member, uint64_t most) {
    uint64_t first = first_beside(p, member);
    struct window *w = free_window(p);
    if (!w)
        return NULL;
    if (end_of(&p->members[member]) - p->members[first].offset > most)
        first = member;
    extend(p, w, first, most);
    if (end_of(&p->members[member]) > w->at + w->length) /* the window lacks this member */
        extend(p, w, member, most);
    uint64_t page = MONARCH_PAGE_BYTES;
    w->bytes = monarch_new_buffer((w->length + page - 1) / page * page + page);
    if (!w->bytes) {
        empty(w);
        return NULL;
    }
    w->state = READING;
    return w;
}

/* Returns 0 if the pack is unchanged, ESTALE if it has changed, or an errno if its attributes could
 * not be read. */
static int look_again(const struct pack *p) {
    const struct statx *was = &p->identity;
    struct statx now;
    int error = identity_of(p->fd, &now);
    if (error)
        return -error;
    int is_same = now.stx_size == was->stx_size && ns(now.stx_mtime) == ns(was->stx_mtime) &&
                  ns(now.stx_ctime) == ns(was->stx_ctime);
    return is_same ? 0 : ESTALE;
}

/* Reads a window. Then checks with the server that the pack has not changed since its members were
 * listed. Returns 0 or an errno; ESTALE: the pack has changed. */
static int read_window(struct monarch_engine *e, struct pack *p, const struct window *w) {
    off_t at = (off_t)w->at, n = (off_t)w->length;
    struct visit v = monarch_visit(e, MONARCH_ENDPOINT_OF_SOURCES);
    monarch_acquire_rate(e, w->length);
    posix_fadvise(p->fd, at, n, POSIX_FADV_WILLNEED);
    ssize_t got = monarch_read_fully(p->fd, w->bytes, w->length, at);
    monarch_leave(&v, got > 0 ? (uint64_t)got : 0);
    posix_fadvise(p->fd, at, n, POSIX_FADV_DONTNEED);
    if (got < 0)
        return (int)-got;
    __atomic_fetch_add(&e->counts[MONARCH_BYTES], (uint64_t)got, __ATOMIC_RELAXED);
    monarch_note_source(e);
    return got == n ? look_again(p) : ESTALE;
}

/* Stores the errno of a read, or 0. ESTALE is never overwritten, because a pack that has changed
 * must not be read again. The caller holds the lock. */
static void note_error(struct pack *p, int error) {
    if (p->error == ESTALE)
        return;
    p->error = error;
    p->retry_ns = monarch_now_ns() + RETRY_NS;
}

/* Reads a window that begin_window has prepared. The caller holds the lock, which is released
 * during the read. */
static void fill_window(struct monarch_engine *e, struct pack *p, struct window *w) {
    pthread_mutex_unlock(&p->lock);
    int error = read_window(e, p, w);
    pthread_mutex_lock(&p->lock);
    note_error(p, error);
    w->used = p->uses++;
    if (error)
        empty(w);
    else
        w->state = READY;
    pthread_cond_broadcast(&p->changed);
}

/* Returns whether the pack may be read now. */
static int is_in_order(struct pack *p) {
    return !p->error || (p->error != ESTALE && monarch_now_ns() > p->retry_ns);
}

/* Reads another window ahead, while another thread reads the window `w`, for which this thread
 * waits. Several reads at the same time hide the source's latency. The new window begins with the
 * first ordered member after `w` that is in no window. Returns 0 if there is no such member or no
 * free window, else 1. */
static int read_ahead(struct monarch_engine *e, const struct job *job, struct pack *p,
                      const struct window *w) {
    uint64_t next = job->member + 1, end = w->at + w->length;
    while (next < p->count && p->members[next].offset < end)
        next++;
    for (int n = 0; n < LOOKS_BACK && next < p->count; n++) {
        const struct window *of = window_of(p, &p->members[next]);
        if (!of && p->is_ordered[next]) {
            struct window *ahead = begin_window(p, next, WINDOW_BYTES);
            if (ahead)
                fill_window(e, p, ahead);
            return ahead != NULL;
        }
        for (end = of ? of->at + of->length : 0, next++;
             next < p->count && p->members[next].offset < end;)
            next++;
    }
    return 0;
}

static void await_change(struct pack *p) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LOOK_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&p->changed, &p->lock, &until);
}

/* Waits until the window that contains the job's file (`job->member`) has been read. Returns this
 * window. Returns NULL if the pack cannot be read, or if no window is free. The caller holds the
 * lock, which is released during waits and reads. */
static struct window *ready_window(struct monarch_engine *e, const struct job *job,
                                   struct pack *p) {
    uint64_t most = job->result.in_use ? SHORT_WINDOW_BYTES : WINDOW_BYTES;
    while (!__atomic_load_n(&e->stopping, __ATOMIC_RELAXED) && is_in_order(p)) {
        struct window *w = window_of(p, &p->members[job->member]);
        if (w && w->state == READY)
            return w;
        if (!w) {
            if (!(w = begin_window(p, job->member, most)))
                return NULL;
            fill_window(e, p, w);
        } else if (job->result.in_use || !read_ahead(e, job, p, w)) {
            await_change(p);
        }
    }
    return NULL;
}

/* Notes that the order no longer waits for its member. Also empties the member's window if no order
 * or thread needs it any more. The caller holds the lock. */
static void leave(struct pack *p, struct job *job) {
    struct window *w = window_of(p, &p->members[job->member]);
    if (p->is_ordered[job->member] && w && w->left)
        w->left--;
    p->is_ordered[job->member] = 0;
    if (w && w->state == READY && !w->left && !w->users)
        empty(w);
    job->pack = NULL;
}

/* Reads a single member into `buffer`, without a window. Returns 0 or an errno. */
static int read_alone(struct monarch_engine *e, struct pack *p, const struct monarch_member *m,
                      char *buffer) {
    struct window alone = {.at = m->offset, .length = m->size, .bytes = buffer};
    int error = read_window(e, p, &alone);
    pthread_mutex_lock(&p->lock);
    note_error(p, error);
    pthread_mutex_unlock(&p->lock);
    return error;
}

int monarch_pack_read(struct monarch_engine *e, struct job *job, char *buffer) {
    struct pack *p = job->pack;
    const struct monarch_member *m = &p->members[job->member];
    pthread_mutex_lock(&p->lock);
    await_member(p, job->member);
    struct window *w = m->size ? ready_window(e, job, p) : NULL;
    if (w) {
        w->users++;
        w->used = p->uses++;
        pthread_mutex_unlock(&p->lock);
        memcpy(buffer, w->bytes + (m->offset - w->at), m->size);
        pthread_mutex_lock(&p->lock);
        w->users--;
    }
    leave(p, job);
    int may_read = is_in_order(p) && !__atomic_load_n(&e->stopping, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&p->lock);
    return w || !m->size || (may_read && read_alone(e, p, m, buffer) == 0) ? 0 : -1;
}

void monarch_pack_leave(struct job *job) {
    struct pack *p = job->pack;
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    leave(p, job);
    pthread_mutex_unlock(&p->lock);
}
