#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "doorbell.h"
#include "joining.h"
#include "native.h"
#include "pace.h"
#include "sys.h"
#include "writer.h"

#define BATCH_ENTRIES 4096
#define BATCH_POOL (512 * 1024)
#define BATCHES_AHEAD 8 /* batches that wait for Python before the threads wait for it */
/* Names that one thread looks at before it takes more. A directory is listed by one thread, and its
 * names are shared out in portions: a flat directory of a million files keeps all threads busy. */
#define PORTION 8
/* Portions that may wait for a thread, for each thread; past it the lister looks at names too. */
#define PORTIONS_AHEAD 16
/* A thread hands over what it has found after this time, and rings for Python as often: fills wait
 * for it [ns]. */
#define BATCH_NS 20000000ULL

/* A directory to list (`names` is 0), or a portion of its names to look at. is_first: nobody has
 * reported the directory itself yet; is_wanted: before all that is not. */
struct task {
    struct task *next;
    int is_first, is_wanted;
    int is_settled; /* names: their directory has not changed since the catalog has files */
    uint32_t names;
    uint32_t place; /* of the first of them among the names of the directory */
    size_t text;    /* length of `path` with its NUL, and of the names behind it */
    char path[];    /* of the directory, relative, "" is the root; then inode and name of each */
};

/* Oldest first. portions : how many of them are */
struct queue {
    struct task *first, *last;
    int portions;
};

#define ALL_NAMES INT64_MAX
/* Listings that a thread begins in the middle of another. */
#define DEEPEST 4

/* A directory that comes before others. The latest are kept: the walk may not have met them yet. */
#define WANTS 16
struct want {
    int is_set, is_deep;
    char directory[MONARCH_PATH_MAX];
};

struct monarch_scan {
    pthread_mutex_t lock;
    pthread_cond_t more_work, may_go_on, room;
    struct queue wanted, wanted_portions;
    struct queue portions; /* in this order the catalog's is nearly the source's */
    struct task *todo;     /* directories, newest first: the tree is walked depth first */
    struct monarch_batch *first, *last;
    struct want wants[WANTS];
    unsigned next_want;
    int batches, busy, threads, stopping, root, error;
    int is_deep, is_whole; /* directories below are walked too; of all the source */
    unsigned source;
    uint64_t dev, errors;
    struct monarch_pace pace;
    int is_all_wanted;
    int64_t may_look[2]; /* at so many names, by whether they are wanted (monarch_scan_allow) */
    struct monarch_writer *writer;         /* of the catalog that is filled, or NULL */
    int64_t since_ns;                      /* what it has is as old as this, of CLOCK_REALTIME */
    const struct monarch_clients *clients; /* who read the source meanwhile, or NULL */
    uint32_t *doorbell;
    uint64_t rung_ns; /* when the bell was last rung for a batch */
    pthread_t thread[];
};

/* --- one file ------------------------------------------------------------------------------- */

static int to_ns(const struct statx_timestamp *t, int64_t *ns) {
    if (t->tv_sec > 9000000000LL || t->tv_sec < -9000000000LL)
        return 0; /* beyond what 64 bits of nanoseconds hold (1684 to 2255) */
    *ns = t->tv_sec * 1000000000LL + t->tv_nsec;
    return 1;
}

static void from_statx(struct monarch_entry *e, const struct statx *x) {
    e->ino = x->stx_ino;
    e->size = x->stx_size;
    e->blocks = x->stx_blocks;
    e->mode = x->stx_mode;
    e->uid = x->stx_uid;
    e->gid = x->stx_gid;
    e->nlink = x->stx_nlink;
    e->blksize = (uint16_t)(x->stx_blksize / 512);
    e->flags = x->stx_attributes & x->stx_attributes_mask ? MONARCH_ATTRIBUTES : 0;
    if (!to_ns(&x->stx_mtime, &e->mtime_ns) || !to_ns(&x->stx_ctime, &e->ctime_ns) ||
        !to_ns(&x->stx_atime, &e->atime_ns) ||
        ((x->stx_mask & STATX_BTIME) && !to_ns(&x->stx_btime, &e->btime_ns)) ||
        e->blksize * 512U != x->stx_blksize)
        e->word = monarch_word(MONARCH_BYPASS, MONARCH_UNSUPPORTED, 0, 0);
}

int monarch_stat_entry(int root, unsigned source, const char *path, struct monarch_entry *e,
                       char *target, uint64_t target_bytes) {
    return monarch_statx_entry(root, source, path, 0, e, target, target_bytes);
}

int monarch_statx_entry(int root, unsigned source, const char *path, int flags,
                        struct monarch_entry *e, char *target, uint64_t target_bytes) {
    struct statx x;
    memset(e, 0, sizeof *e);
    e->place = MONARCH_NO_PLACE;
    if (statx(root, path, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH | flags,
              STATX_BASIC_STATS | STATX_BTIME, &x) != 0)
        return -errno;
    e->source = (uint8_t)source;
    from_statx(e, &x);
    if (S_ISREG(x.stx_mode)) {
        e->kind = MONARCH_FILE;
    } else if (S_ISDIR(x.stx_mode)) {
        e->kind = MONARCH_DIR;
    } else if (S_ISLNK(x.stx_mode)) {
        ssize_t n = readlinkat(root, path, target, target_bytes);
        if (n < 0 || (uint64_t)n >= target_bytes)
            return n < 0 ? -errno : -ENAMETOOLONG;
        target[n] = 0;
        e->kind = MONARCH_LINK;
    } else {
        e->kind = MONARCH_OTHER;
    }
    return 0;
}

/* --- batches --------------------------------------------------------------------------------- */

void monarch_batch_free(struct monarch_batch *b) {
    if (b) {
        free(b->entries);
        free(b->pool);
        free(b);
    }
}

static struct monarch_batch *new_batch(void) {
    struct monarch_batch *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->capacity = BATCH_ENTRIES;
    b->pool_bytes = BATCH_POOL;
    b->entries = malloc(b->capacity * sizeof *b->entries);
    b->pool = malloc(b->pool_bytes);
    if (!b->entries || !b->pool) {
        monarch_batch_free(b);
        return NULL;
    }
    return b;
}

/* Moves the entries of `b` behind those of `to` if they have room there. */
static int merge(struct monarch_batch *to, struct monarch_batch *b) {
    if (!to || to->count + b->count > to->capacity || to->pool_used + b->pool_used > to->pool_bytes)
        return 0;
    for (uint64_t i = 0; i < b->count; i++) {
        struct monarch_entry *e = &to->entries[to->count + i];
        *e = b->entries[i];
        e->path += to->pool_used;
        if (e->kind == MONARCH_LINK)
            e->copy_ino += to->pool_used;
    }
    memcpy(to->pool + to->pool_used, b->pool, b->pool_used);
    to->count += b->count;
    to->pool_used += b->pool_used;
    b->count = b->pool_used = 0;
    return 1;
}

/* Takes what a thread has found away from it: *batch is empty then, or NULL. Each thread finds
 * little in a short time; what all of them find becomes one batch as long as Python does not take
 * it, so that a turn of its loop is spent on many files. */
static void hand_over(struct monarch_scan *s, struct monarch_batch **batch) {
    if (!*batch || !(*batch)->count)
        return;
    uint64_t now = sys_now_ns();
    pthread_mutex_lock(&s->lock);
    while (s->batches >= BATCHES_AHEAD && !s->stopping)
        pthread_cond_wait(&s->room, &s->lock);
    if (!merge(s->last, *batch)) {
        *(s->last ? &s->last->next : &s->first) = *batch;
        s->last = *batch;
        s->batches++;
        *batch = NULL;
    }
    int rings = now - s->rung_ns >= BATCH_NS || (!*batch && s->first != s->last);
    if (rings)
        s->rung_ns = now;
    pthread_mutex_unlock(&s->lock);
    if (rings)
        monarch_doorbell_ring(s->doorbell);
}

static void add_to_batch(struct monarch_batch *b, struct monarch_entry *e, const char *path,
                         const char *target) {
    size_t len = strlen(path);
    if (!b->count)
        b->begun_ns = sys_now_ns();
    e->path = b->pool_used;
    e->path_len = (uint16_t)len;
    memcpy(b->pool + b->pool_used, path, len + 1);
    b->pool_used += len + 1;
    if (e->kind == MONARCH_LINK) {
        size_t n = strlen(target) + 1;
        e->copy_ino = b->pool_used;
        memcpy(b->pool + b->pool_used, target, n);
        b->pool_used += n;
    }
    b->entries[b->count++] = *e;
}

/* --- walking --------------------------------------------------------------------------------- */

static void count_error(struct monarch_scan *s, int error) {
    pthread_mutex_lock(&s->lock);
    s->errors++;
    if (!s->error)
        s->error = error;
    pthread_mutex_unlock(&s->lock);
}

static void pace(struct monarch_scan *s) { monarch_keep_pace(&s->pace, UINT64_MAX); }

static struct task *new_task(struct monarch_scan *s, const char *path, size_t room) {
    size_t len = strlen(path) + 1;
    struct task *t = malloc(sizeof *t + len + room);
    if (!t) {
        count_error(s, ENOMEM);
        return NULL;
    }
    t->is_first = t->is_wanted = t->is_settled = 0;
    t->names = t->place = 0;
    t->text = len;
    memcpy(t->path, path, len);
    return t;
}

/* Whether the way to `path` leads through `above`, or ends there. */
static int leads_through(const char *path, const char *above) {
    size_t n = strlen(above);
    return !n || (strncmp(path, above, n) == 0 && (!path[n] || path[n] == '/'));
}

/* Directories above are named with it: they lead there. */
static int is_named(const struct want *w, const char *directory) {
    return leads_through(w->directory, directory) ||
           (w->is_deep && leads_through(directory, w->directory));
}

static int is_wanted(const struct monarch_scan *s, const char *directory) {
    for (int i = 0; i < WANTS; i++)
        if (s->wants[i].is_set && is_named(&s->wants[i], directory))
            return 1;
    return 0;
}

static void append(struct queue *q, struct task *t) {
    t->next = NULL;
    *(q->first ? &q->last->next : &q->first) = t;
    q->last = t;
    q->portions += t->names > 0;
}

/* The first of a queue that is not empty. */
static struct task *take_first(struct queue *q) {
    struct task *t = q->first;
    q->first = t->next;
    q->portions -= t->names > 0;
    return t;
}

/* Under the lock. */
static int64_t *looks_left(struct monarch_scan *s, int is_wanted) {
    return &s->may_look[is_wanted || s->is_all_wanted];
}

static void count_looks(struct monarch_scan *s, const struct task *t) {
    int64_t *left = looks_left(s, t->is_wanted);
    if (*left != ALL_NAMES)
        *left -= t->names;
}

static int may_look(struct monarch_scan *s, struct task *t) {
    t->is_wanted |= is_wanted(s, t->path);
    return *looks_left(s, t->is_wanted) > 0;
}

/* A directory that is wanted is listed at once. */
static int may_begin(struct monarch_scan *s) {
    return s->wanted.first || (s->may_look[1] > 0 && s->wanted_portions.first) ||
           (*looks_left(s, 0) > 0 && (s->portions.first || s->todo));
}

static void add_task(struct monarch_scan *s, struct task *t) {
    if (!t)
        return;
    pthread_mutex_lock(&s->lock);
    t->is_wanted |= is_wanted(s, t->path);
    if (t->is_wanted || t->names) {
        append(!t->names ? &s->wanted : t->is_wanted ? &s->wanted_portions : &s->portions, t);
    } else {
        t->next = s->todo;
        s->todo = t;
    }
    if (may_begin(s))
        pthread_cond_signal(&s->more_work);
    pthread_mutex_unlock(&s->lock);
}

static int is_on_source(struct monarch_scan *s, const char *path) {
    struct stat st;
    return fstatat(s->root, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_dev == s->dev;
}

static void report(struct monarch_scan *s, struct monarch_batch **batch, struct monarch_entry *e,
                   const char *path, const char *target) {
    if (*batch && ((*batch)->count == (*batch)->capacity ||
                   (*batch)->pool_used + 2 * MONARCH_PATH_MAX > (*batch)->pool_bytes))
        hand_over(s, batch);
    if (!*batch && !(*batch = new_batch())) {
        count_error(s, ENOMEM);
        return;
    }
    add_to_batch(*batch, e, path, target);
}

static _Thread_local uint64_t looks; /* of this thread at names */

/* A file that a program has handed over: it was looked at since. What is told of it now is its
 * place in the directory, which has the same file under this name still. */
static int is_known(struct monarch_scan *s, const char *path, uint64_t ino,
                    struct monarch_entry *e) {
    struct monarch_writer *w = s->writer;
    if (!w || !monarch_lock_soon(w))
        return 0;
    const struct monarch_catalog *c = w->catalog;
    int64_t id = monarch_find(c, s->source, path, strlen(path));
    if (id >= 0)
        *e = monarch_entries(c)[id];
    pthread_mutex_unlock(&w->lock);
    e->word = 0;
    return id >= 0 && e->kind == MONARCH_FILE && e->ino == ino;
}

static void visit(struct monarch_scan *s, struct monarch_batch **batch, const char *path,
                  uint32_t place, uint64_t ino, int is_settled) {
    struct monarch_entry e;
    char target[MONARCH_PATH_MAX];
    if (is_settled && is_known(s, path, ino, &e)) {
        e.place = place;
        report(s, batch, &e, path, "");
        return;
    }
    pace(s);
    looks++;
    int is_read =
        s->clients && monarch_is_being_read(s->clients, monarch_unmet(ino), ino, sys_now_ns());
    int r = monarch_statx_entry(s->root, s->source, path, is_read ? AT_STATX_DONT_SYNC : 0, &e,
                                target, sizeof target);
    if (r != 0) {
        if (r != -ENOENT)
            count_error(s, -r);
        return;
    }
    /* Another file system mounted below is another source, if any. */
    if (e.kind == MONARCH_DIR && !is_on_source(s, path)) {
        e.kind = MONARCH_OTHER;
        e.ino = ino;
    }
    e.place = place;
    report(s, batch, &e, path, target);
    if (e.kind == MONARCH_DIR && s->is_deep)
        add_task(s, new_task(s, path, 0));
}

/* A directory is reported a second time when all its names are read: with their number, and as it
 * is now. If that is not what it was before they were read, the names may be neither's. Listings
 * are made once, of all the source (monarch_catalog_list). */
static void close_listing(struct monarch_scan *s, struct monarch_batch **batch, const char *path,
                          int fd, uint32_t names) {
    struct monarch_entry e;
    char target[1];
    if (!s->is_whole)
        return;
    pace(s);
    if (monarch_stat_entry(fd, s->source, "", &e, target, sizeof target) != 0)
        return;
    e.sum = names + 1ULL;
    report(s, batch, &e, path, target);
}

static void hand_over_in_time(struct monarch_scan *s, struct monarch_batch **batch) {
    if (*batch && (*batch)->count && sys_now_ns() - (*batch)->begun_ns > BATCH_NS)
        hand_over(s, batch);
}

static void look_at_names(struct monarch_scan *s, struct monarch_batch **batch, struct task *t) {
    char child[MONARCH_PATH_MAX];
    size_t len = strlen(t->path);
    const char *at = t->path + len + 1;
    memcpy(child, t->path, len);
    if (len)
        child[len++] = '/';
    for (uint32_t i = 0; i < t->names && !__atomic_load_n(&s->stopping, __ATOMIC_RELAXED); i++) {
        uint64_t ino;
        memcpy(&ino, at, sizeof ino);
        at += sizeof ino;
        size_t n = strlen(at) + 1;
        if (len + n <= sizeof child) {
            memcpy(child + len, at, n);
            visit(s, batch, child, t->place + i, ino, t->is_settled);
            hand_over_in_time(s, batch);
        }
        at += n;
    }
}

static int others_have_enough(struct monarch_scan *s, const struct task *t) {
    pthread_mutex_lock(&s->lock);
    int enough = (t->is_wanted ? &s->wanted_portions : &s->portions)->portions >=
                 (s->threads - 1) * PORTIONS_AHEAD;
    pthread_mutex_unlock(&s->lock);
    return enough;
}

static void walk_directory(struct monarch_scan *s, struct monarch_batch **batch, struct task *t);

/* Looks at names that this thread has listed itself and that no other thread has. While no looks
 * are left, it lists wanted directories: all threads may wait here. */
static void look_at_own(struct monarch_scan *s, struct monarch_batch **batch, struct task *t) {
    static _Thread_local int depth;
    pthread_mutex_lock(&s->lock);
    while (!may_look(s, t) && !s->stopping) {
        struct task *wanted = s->wanted.first && depth < DEEPEST ? take_first(&s->wanted) : NULL;
        pthread_mutex_unlock(&s->lock);
        hand_over(s, batch);
        depth++;
        if (wanted)
            walk_directory(s, batch, wanted);
        depth--;
        free(wanted);
        pthread_mutex_lock(&s->lock);
        if (!wanted && !may_look(s, t) && !s->stopping)
            pthread_cond_wait(&s->may_go_on, &s->lock);
    }
    count_looks(s, t);
    pthread_mutex_unlock(&s->lock);
    look_at_names(s, batch, t);
}

static void share_out(struct monarch_scan *s, struct monarch_batch **batch, struct task *t) {
    if (!others_have_enough(s, t)) {
        add_task(s, t);
        return;
    }
    look_at_own(s, batch, t);
    free(t);
}

static int is_dot(const char *name) {
    return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]));
}

static struct task *new_portion(struct monarch_scan *s, const struct task *directory, size_t room) {
    struct task *t = new_task(s, directory->path, room);
    if (t) {
        t->is_wanted = directory->is_wanted;
        t->is_settled = directory->is_settled;
    }
    return t;
}

/* Reads the names of a directory and shares them out but for the last portion, which is left in
 * *rest. Returns how many names there are, -1 if not all could be read. */
static int64_t list_names(struct monarch_scan *s, struct monarch_batch **batch,
                          const struct task *directory, DIR *d, struct task **rest) {
    const char *path = directory->path;
    const size_t room = PORTION * (sizeof(uint64_t) + NAME_MAX + 1);
    uint32_t names = 0;
    struct task *t = NULL;
    errno = 0;
    for (struct dirent *entry; (entry = readdir(d)); errno = 0) {
        if (__atomic_load_n(&s->stopping, __ATOMIC_RELAXED)) {
            errno = ECANCELED;
            break;
        }
        if (is_dot(entry->d_name))
            continue;
        size_t n = strlen(entry->d_name) + 1;
        if (t &&
            (t->names == PORTION || t->text + sizeof(uint64_t) + n > strlen(path) + 1 + room)) {
            share_out(s, batch, t);
            t = NULL;
        }
        if (!t && !(t = new_portion(s, directory, room)))
            break;
        t->place = t->names ? t->place : names;
        uint64_t ino = entry->d_ino;
        memcpy(t->path + t->text, &ino, sizeof ino);
        memcpy(t->path + t->text + sizeof ino, entry->d_name, n);
        t->text += sizeof ino + n;
        t->names++;
        names++;
    }
    *rest = t;
    return errno ? -1 : (int64_t)names;
}

/* The directory that a walk begins with; whether it lies on the source's file system. */
static int report_first(struct monarch_scan *s, struct monarch_batch **batch, const char *path,
                        int fd) {
    struct monarch_entry e;
    struct stat st;
    char target[1];
    if (fstat(fd, &st) != 0 || st.st_dev != s->dev)
        return 0;
    if (monarch_stat_entry(fd, s->source, "", &e, target, sizeof target) == 0)
        report(s, batch, &e, path, "");
    return 1;
}

#define OPEN_DIRECTORY (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

/* A directory that somebody has named must lie in the source by each part of its name. Those below
 * it are known by names that were read. */
static int open_by_parts(int root, const char *path) {
    char part[NAME_MAX + 1];
    int fd = openat(root, ".", OPEN_DIRECTORY);
    for (size_t n; fd >= 0 && *path; path += n + (path[n] == '/')) {
        n = strcspn(path, "/");
        int next = -1, above = fd;
        errno = n < sizeof part ? ENOTDIR : ENAMETOOLONG;
        if (n && n < sizeof part) {
            memcpy(part, path, n);
            part[n] = 0;
            next = is_dot(part) ? -1 : openat(above, part, OPEN_DIRECTORY);
        }
        int error = errno;
        close(above);
        errno = error;
        fd = next;
    }
    return fd;
}

static int open_directory(const struct monarch_scan *s, const struct task *t) {
    if (t->is_first)
        return open_by_parts(s->root, t->path);
    return openat(s->root, *t->path ? t->path : ".", OPEN_DIRECTORY);
}

/* Times that servers keep may be as coarse as this, and their clocks as far off [ns]. */
#define YOUNG_NS 2000000000LL

static int is_settled(const struct monarch_scan *s, int fd) {
    struct stat st;
    int64_t limit = s->since_ns - YOUNG_NS;
    return s->writer && fstat(fd, &st) == 0 &&
           monarch_time_ns(st.st_mtim.tv_sec, st.st_mtim.tv_nsec) < limit &&
           monarch_time_ns(st.st_ctim.tv_sec, st.st_ctim.tv_nsec) < limit;
}

static void walk_directory(struct monarch_scan *s, struct monarch_batch **batch, struct task *t) {
    const char *path = t->path;
    struct task *rest = NULL;
    pace(s);
    int fd = open_directory(s, t);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        if (errno != ENOENT) /* it has gone since it was named */
            count_error(s, errno);
        if (fd >= 0)
            close(fd);
        return;
    }
    t->is_settled = is_settled(s, fd);
    if (!t->is_first || report_first(s, batch, path, fd)) {
        int64_t names = list_names(s, batch, t, d, &rest);
        if (names < 0 && errno != ECANCELED)
            count_error(s, errno);
        if (names >= 0)
            close_listing(s, batch, path, fd, (uint32_t)names);
    }
    closedir(d);
    if (rest)
        look_at_own(s, batch, rest);
    free(rest);
}

static int has_work(const struct monarch_scan *s) {
    return s->wanted.first || s->wanted_portions.first || s->portions.first || s->todo;
}

/* The first that may begin. */
static struct task *take_task(struct monarch_scan *s) {
    struct task *t = s->todo;
    if (s->wanted.first)
        t = take_first(&s->wanted);
    else if (s->may_look[1] > 0 && s->wanted_portions.first)
        t = take_first(&s->wanted_portions);
    else if (s->portions.first)
        t = take_first(&s->portions);
    else
        s->todo = t->next;
    count_looks(s, t);
    return t;
}

/* A thread hands over its batch before it waits for work, so that a directory that hangs hides only
 * its own files. */
static struct task *next_task(struct monarch_scan *s, struct monarch_batch **batch) {
    struct task *t = NULL;
    pthread_mutex_lock(&s->lock);
    int waits = !may_begin(s);
    pthread_mutex_unlock(&s->lock);
    if (waits)
        hand_over(s, batch);
    pthread_mutex_lock(&s->lock);
    s->busy--;
    while (!may_begin(s) && (has_work(s) || s->busy > 0) && !s->stopping)
        pthread_cond_wait(&s->more_work, &s->lock);
    if (may_begin(s) && !s->stopping) {
        t = take_task(s);
        s->busy++;
        if (may_begin(s)) /* each wakes the next one, as long as there is something to do */
            pthread_cond_signal(&s->more_work);
    } else {
        pthread_cond_broadcast(&s->more_work);
    }
    pthread_mutex_unlock(&s->lock);
    return t;
}

/* A look at a source that lies elsewhere has its thread sleep. One that hardly ever sleeps takes a
 * processor, from the job if there is no idle one: it stands back, for good. Threads of a source
 * that they wait for must not: what they find is what is filled ahead. */
#define LOOKS 64
#define LOOKS_EACH_SLEEP 8

static int stands_back(const struct rusage *begin) {
    struct rusage now;
    if (getrusage(RUSAGE_THREAD, &now) != 0 ||
        (uint64_t)(now.ru_nvcsw - begin->ru_nvcsw) * LOOKS_EACH_SLEEP > looks)
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
    for (struct task *t; (t = next_task(s, &batch)); free(t)) {
        if (t->names)
            look_at_names(s, &batch, t);
        else
            walk_directory(s, &batch, t);
        if (!is_behind && looks >= LOOKS)
            is_behind = stands_back(&begin);
    }
    hand_over(s, &batch);
    monarch_batch_free(batch);
    pthread_mutex_lock(&s->lock);
    s->threads--;
    pthread_mutex_unlock(&s->lock);
    monarch_doorbell_ring(s->doorbell);
    return NULL;
}

/* So many threads cannot be started; those that were may be waiting for what they would find. */
static void lack(struct monarch_scan *s, int started, int missing) {
    s->thread[started] = 0; /* libc has written to it */
    pthread_mutex_lock(&s->lock);
    s->busy -= missing;
    s->threads -= missing;
    pthread_cond_broadcast(&s->more_work);
    pthread_mutex_unlock(&s->lock);
    if (!started)
        count_error(s, EAGAIN);
}

/* --- for Python ------------------------------------------------------------------------------ */

static void add_first(struct monarch_scan *s, const char *path) {
    struct task *t = new_task(s, path, 0);
    if (t)
        t->is_first = 1;
    add_task(s, t);
}

static struct monarch_scan *new_scan(int root, unsigned source, int threads, uint64_t ops_per_s,
                                     uint32_t *doorbell) {
    struct stat st;
    struct monarch_scan *s = calloc(1, sizeof *s + (size_t)(threads + 1) * sizeof(pthread_t));
    if (!s || fstat(root, &st) != 0) {
        free(s);
        return NULL;
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->more_work, NULL);
    pthread_cond_init(&s->may_go_on, NULL);
    pthread_cond_init(&s->room, NULL);
    s->root = root;
    s->source = source;
    s->dev = st.st_dev;
    monarch_pace_init(&s->pace, ops_per_s);
    s->doorbell = doorbell;
    s->busy = s->threads = threads; /* each gives its share back when it first asks for work */
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
    for (uint64_t i = n; i > 0; i--) /* the last one that is added is taken first */
        add_first(s, directories[i - 1]);
    return begin(s);
}

static void wake_all(struct monarch_scan *s) {
    pthread_cond_broadcast(&s->more_work);
    pthread_cond_broadcast(&s->may_go_on);
}

/* Directories of a list that a want names become wanted. */
static void move_wanted(struct monarch_scan *s, const struct want *w, struct task **at) {
    for (struct task *t; (t = *at);) {
        if (!is_named(w, t->path)) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        t->is_wanted = 1;
        append(&s->wanted, t);
    }
}

static void move_wanted_portions(struct monarch_scan *s, const struct want *w) {
    struct queue left = s->portions;
    s->portions = (struct queue){NULL, NULL, 0};
    while (left.first) {
        struct task *t = take_first(&left);
        t->is_wanted = is_named(w, t->path);
        append(t->is_wanted ? &s->wanted_portions : &s->portions, t);
    }
}

void monarch_scan_skip_known(struct monarch_scan *s, struct monarch_writer *w,
                             const struct monarch_clients *clients, int64_t since_ns) {
    pthread_mutex_lock(&s->lock); /* a thread takes it before it looks at a name */
    s->writer = w;
    s->clients = clients;
    s->since_ns = since_ns;
    pthread_mutex_unlock(&s->lock);
}

/* As many threads as that many names are portions, or one, which wakes others: more would find
 * nothing to do. */
static void wake_for(struct monarch_scan *s, int64_t names) {
    int64_t portions = names / PORTION + 1;
    if (portions >= s->threads)
        pthread_cond_broadcast(&s->more_work);
    else
        for (int64_t i = 0; i < portions; i++)
            pthread_cond_signal(&s->more_work);
    pthread_cond_broadcast(&s->may_go_on);
}

void monarch_scan_allow(struct monarch_scan *s, int64_t wanted, int64_t more_others) {
    pthread_mutex_lock(&s->lock);
    int64_t others = s->may_look[0] == ALL_NAMES ? 0 : s->may_look[0];
    if (wanted || s->may_look[1] == ALL_NAMES) /* what was allowed may not have been begun yet */
        s->may_look[1] = wanted < 0 ? ALL_NAMES : wanted;
    s->may_look[0] = more_others < 0 ? ALL_NAMES : others + more_others;
    if (wanted < 0 || more_others < 0)
        wake_all(s);
    else if (wanted || more_others)
        wake_for(s, wanted + (s->may_look[0] > 0 ? s->may_look[0] : 0));
    pthread_mutex_unlock(&s->lock);
}

void monarch_scan_want(struct monarch_scan *s, const char *directory, int is_deep) {
    pthread_mutex_lock(&s->lock);
    if (*directory || !is_deep) {
        struct want *w = &s->wants[s->next_want++ % WANTS];
        snprintf(w->directory, sizeof w->directory, "%s", directory);
        w->is_set = 1;
        w->is_deep = is_deep;
        move_wanted(s, w, &s->todo);
        move_wanted_portions(s, w);
    } else {
        s->is_all_wanted = 1; /* nothing comes before the rest */
    }
    wake_all(s);
    pthread_mutex_unlock(&s->lock);
}

struct monarch_batch *monarch_scan_take(struct monarch_scan *s, int *finished) {
    pthread_mutex_lock(&s->lock);
    struct monarch_batch *b = s->first;
    if (b) {
        s->first = b->next;
        if (!s->first)
            s->last = NULL;
        s->batches--;
        pthread_cond_broadcast(&s->room);
    }
    *finished = !b && s->threads == 0;
    pthread_mutex_unlock(&s->lock);
    return b;
}

uint64_t monarch_scan_errors(struct monarch_scan *s, int *error) {
    pthread_mutex_lock(&s->lock);
    uint64_t n = s->errors;
    *error = s->error;
    pthread_mutex_unlock(&s->lock);
    return n;
}

int monarch_scan_stop(struct monarch_scan *s, int limit_ms) {
    int finished, left = 0;
    struct timespec until = monarch_join_limit(limit_ms);
    pthread_mutex_lock(&s->lock);
    __atomic_store_n(&s->stopping, 1, __ATOMIC_RELAXED);
    wake_all(s);
    pthread_cond_broadcast(&s->room);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; s->thread[i]; i++) /* calloc left a zero behind the last one started */
        left += !monarch_join(s->thread[i], &until);
    if (left)
        return left;
    for (struct monarch_batch *b; (b = monarch_scan_take(s, &finished));)
        monarch_batch_free(b);
    s->may_look[0] = s->may_look[1] = ALL_NAMES;
    while (has_work(s))
        free(take_task(s));
    free(s);
    return 0;
}
