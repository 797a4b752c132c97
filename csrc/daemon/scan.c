#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "doorbell.h"
#include "native.h"

#define BATCH_ENTRIES 4096
#define BATCH_POOL (512 * 1024)
#define BATCHES_AHEAD 8 /* finished batches that wait for Python before the threads do */

struct directory {
    struct directory *next;
    char path[]; /* relative; "" is the root */
};

struct monarch_scan {
    pthread_mutex_t lock;
    pthread_cond_t more_work, room;
    struct directory *todo;
    struct monarch_batch *first, *last;
    int batches, busy, threads, stopping, root, error;
    unsigned source;
    uint64_t dev, ops_per_s, ops, errors, next_op_ns;
    uint32_t *doorbell;
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
    struct statx x;
    memset(e, 0, sizeof *e);
    e->place = MONARCH_NO_PLACE;
    if (statx(root, path, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME,
              &x) != 0)
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

static void hand_over(struct monarch_scan *s, struct monarch_batch *b) {
    if (!b || !b->count) {
        monarch_batch_free(b);
        return;
    }
    pthread_mutex_lock(&s->lock);
    while (s->batches >= BATCHES_AHEAD && !s->stopping)
        pthread_cond_wait(&s->room, &s->lock);
    if (s->last)
        s->last->next = b;
    else
        s->first = b;
    s->last = b;
    s->batches++;
    pthread_mutex_unlock(&s->lock);
    monarch_doorbell_ring(s->doorbell);
}

static void add_to_batch(struct monarch_batch *b, struct monarch_entry *e, const char *path,
                         const char *target) {
    size_t len = strlen(path);
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

/* Spaces operations evenly over all threads; a pause is not caught up by a burst. */
static void pace(struct monarch_scan *s) {
    struct timespec t;
    if (!s->ops_per_s)
        return;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t now = (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
    pthread_mutex_lock(&s->lock);
    uint64_t mine = s->next_op_ns > now ? s->next_op_ns : now;
    s->next_op_ns = mine + 1000000000ULL / s->ops_per_s;
    pthread_mutex_unlock(&s->lock);
    t.tv_sec = (time_t)(mine / 1000000000ULL);
    t.tv_nsec = (long)(mine % 1000000000ULL);
    while (mine > now && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

static void add_directory(struct monarch_scan *s, const char *path) {
    struct directory *d = malloc(sizeof *d + strlen(path) + 1);
    if (!d) {
        count_error(s, ENOMEM);
        return;
    }
    strcpy(d->path, path);
    pthread_mutex_lock(&s->lock);
    d->next = s->todo;
    s->todo = d;
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
                   (*batch)->pool_used + 2 * MONARCH_PATH_MAX > (*batch)->pool_bytes)) {
        hand_over(s, *batch);
        *batch = NULL;
    }
    if (!*batch && !(*batch = new_batch())) {
        count_error(s, ENOMEM);
        return;
    }
    add_to_batch(*batch, e, path, target);
}

static void visit(struct monarch_scan *s, struct monarch_batch **batch, const char *path,
                  uint32_t place, uint64_t ino) {
    struct monarch_entry e;
    char target[MONARCH_PATH_MAX];
    pace(s);
    int r = monarch_stat_entry(s->root, s->source, path, &e, target, sizeof target);
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
    if (e.kind == MONARCH_DIR)
        add_directory(s, path);
}

/* A directory is reported a second time when all its names are: with their number, and as it is
 * now. If that is not what it was before they were read, the names may be neither's. */
static void close_listing(struct monarch_scan *s, struct monarch_batch **batch, const char *path,
                          int fd, uint32_t names) {
    struct monarch_entry e;
    char target[1];
    pace(s);
    if (monarch_stat_entry(fd, s->source, "", &e, target, sizeof target) != 0)
        return;
    e.sum = names + 1ULL;
    report(s, batch, &e, path, target);
}

static void walk_directory(struct monarch_scan *s, struct monarch_batch **batch, const char *path) {
    char child[MONARCH_PATH_MAX];
    size_t len = strlen(path);
    struct monarch_entry root;
    uint32_t names = 0;
    int stopped = 0;
    pace(s);
    int fd = openat(s->root, len ? path : ".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        count_error(s, errno);
        if (fd >= 0)
            close(fd);
        return;
    }
    if (!len && monarch_stat_entry(fd, s->source, "", &root, child, sizeof child) == 0)
        report(s, batch, &root, "", "");
    memcpy(child, path, len);
    if (len)
        child[len++] = '/';
    errno = 0;
    for (struct dirent *entry; !stopped && (entry = readdir(d)); errno = 0) {
        size_t n = strlen(entry->d_name);
        stopped = __atomic_load_n(&s->stopping, __ATOMIC_RELAXED);
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (len + n < sizeof child) {
            memcpy(child + len, entry->d_name, n + 1);
            visit(s, batch, child, names, entry->d_ino);
        }
        names++;
    }
    if (errno == 0 && !stopped)
        close_listing(s, batch, path, fd, names);
    closedir(d);
}

static struct directory *next_directory(struct monarch_scan *s) {
    struct directory *d = NULL;
    pthread_mutex_lock(&s->lock);
    s->busy--;
    while (!s->todo && s->busy > 0 && !s->stopping)
        pthread_cond_wait(&s->more_work, &s->lock);
    if (s->todo && !s->stopping) {
        d = s->todo;
        s->todo = d->next;
        s->busy++;
    } else {
        pthread_cond_broadcast(&s->more_work);
    }
    pthread_mutex_unlock(&s->lock);
    return d;
}

static void *scan_thread(void *arg) {
    struct monarch_scan *s = arg;
    struct monarch_batch *batch = NULL;
    for (struct directory *d; (d = next_directory(s)); free(d)) {
        walk_directory(s, &batch, d->path);
        /* What is found must not wait in a batch while other threads go on for long. */
        if (batch && batch->count > BATCH_ENTRIES / 8) {
            hand_over(s, batch);
            batch = NULL;
        }
    }
    hand_over(s, batch);
    pthread_mutex_lock(&s->lock);
    s->threads--;
    pthread_mutex_unlock(&s->lock);
    monarch_doorbell_ring(s->doorbell);
    return NULL;
}

/* --- for Python ------------------------------------------------------------------------------ */

struct monarch_scan *monarch_scan_start(int root, unsigned source, int threads, uint64_t ops_per_s,
                                        uint32_t *doorbell) {
    struct stat st;
    struct monarch_scan *s = calloc(1, sizeof *s + (size_t)(threads + 1) * sizeof(pthread_t));
    if (!s || fstat(root, &st) != 0) {
        free(s);
        return NULL;
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->more_work, NULL);
    pthread_cond_init(&s->room, NULL);
    s->root = root;
    s->source = source;
    s->dev = st.st_dev;
    s->ops_per_s = ops_per_s;
    s->doorbell = doorbell;
    add_directory(s, "");
    s->busy = s->threads = threads; /* each gives its share back when it first asks for work */
    for (int i = 0; i < threads; i++)
        if (pthread_create(&s->thread[i], NULL, scan_thread, s) != 0) {
            pthread_mutex_lock(&s->lock);
            s->busy -= threads - i;
            s->threads -= threads - i;
            pthread_mutex_unlock(&s->lock);
            break;
        }
    return s;
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

void monarch_scan_stop(struct monarch_scan *s) {
    int finished;
    pthread_mutex_lock(&s->lock);
    __atomic_store_n(&s->stopping, 1, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&s->more_work);
    pthread_cond_broadcast(&s->room);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; s->thread[i]; i++) /* calloc left a zero behind the last one started */
        pthread_join(s->thread[i], NULL);
    for (struct monarch_batch *b; (b = monarch_scan_take(s, &finished));)
        monarch_batch_free(b);
    for (struct directory *d; (d = s->todo); free(d))
        s->todo = d->next;
    free(s);
}
