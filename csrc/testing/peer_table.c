/* A peer server without a catalog uses this table to find the files that it serves. The table keeps
 * an open descriptor of each file. It also records which blocks of an incomplete file have
 * arrived. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "peers/connection.h"
#include "testing/testing.h"

/* Number of hash chains. This number is sufficient for several hundred files. */
#define SLOTS 1024
/* Maximum size of a block [bytes]. With this limit, the offset of a block's end fits into 64
 * bits. */
#define LARGEST_BLOCK (1ULL << 40)

struct shared {
    struct shared *next;
    uint32_t source;
    int fd;
    uint64_t path_hash, size, block_bytes, blocks;
    int64_t mtime_ns;
    /* reference count: 1 for the table, and 1 for each connection that sends the file; guarded by
     * the table's lock */
    unsigned users;
    int is_withdrawn; /* atomic */
    int knows_sums, knows_digests;
    uint64_t *sums; /* for each block; valid only for blocks that have arrived */
    struct monarch_digest *digests;
    unsigned char *there; /* atomic; for each block: whether it has arrived */
};

struct monarch_peer_table {
    pthread_mutex_t lock;
    /* the server whose requests wait for blocks of the table's files */
    struct monarch_peer_server *server;
    uint64_t length;
    struct shared *slot[SLOTS];
};

typedef struct monarch_peer_table table;

static struct shared **find(table *t, uint32_t source, uint64_t path_hash) {
    struct shared **f = &t->slot[(path_hash ^ source) % SLOTS];
    while (*f && ((*f)->source != source || (*f)->path_hash != path_hash))
        f = &(*f)->next;
    return f;
}

static void leave(table *t, struct shared *f) {
    pthread_mutex_lock(&t->lock);
    int is_last = --f->users == 0;
    pthread_mutex_unlock(&t->lock);
    if (!is_last)
        return;
    close(f->fd);
    free(f);
}

/* Wakes the requests that wait for this file. Holds the table's lock, so that no other thread stops
 * the server during the call. */
static void wake(table *t, uint32_t source, uint64_t path_hash) {
    pthread_mutex_lock(&t->lock);
    if (t->server)
        monarch_peer_wake(t->server, source, path_hash);
    pthread_mutex_unlock(&t->lock);
}

/* --- callbacks of the server ------------------------------------------------------------------ */

static enum monarch_peer_status open_shared(void *arg, const struct monarch_peer_request *wanted,
                                            struct monarch_peer_opened *out) {
    table *t = arg;
    pthread_mutex_lock(&t->lock);
    struct shared *f = *find(t, wanted->source, wanted->path_hash);
    int is_same = f && f->size == wanted->size && f->mtime_ns == wanted->mtime_ns;
    if (is_same)
        f->users++;
    pthread_mutex_unlock(&t->lock);
    if (!is_same)
        return f ? MONARCH_PEER_CHANGED : MONARCH_PEER_UNKNOWN_FILE;
    *out = (struct monarch_peer_opened){f, f->fd, f->size, f->block_bytes};
    return MONARCH_PEER_OK;
}

static uint64_t available(void *arg, void *file, uint64_t at) {
    struct shared *f = file;
    (void)arg;
    uint64_t b = at / f->block_bytes;
    /* A block that has arrived is sent even if the file was removed from the table after the peer's
     * request. The descriptor stays open until all connections that send the file are done. */
    if (__atomic_load_n(&f->there[b], __ATOMIC_ACQUIRE))
        return (b + 1) * f->block_bytes;
    return __atomic_load_n(&f->is_withdrawn, __ATOMIC_ACQUIRE) ? MONARCH_PEER_NEVER : at;
}

/* The server asks whether a source is returning data at the moment. The table knows nothing about
 * sources, so the answer is always 0. */
static int is_coming(void *arg) {
    (void)arg;
    return 0;
}

static int sum_of(void *arg, void *file, uint64_t block, uint64_t *sum,
                  struct monarch_digest *digest) {
    struct shared *f = file;
    (void)arg;
    if (!f->knows_digests)
        return 0;
    *sum = f->sums[block];
    *digest = f->digests[block];
    return 1;
}

static int check(void *arg, void *file, uint64_t block, const uint64_t *sum) {
    const struct shared *f = file;
    (void)arg;
    return !f->knows_sums || (sum && *sum == f->sums[block]);
}

static void close_shared(void *arg, void *file) { leave(arg, file); }

/* --- calls from Python ------------------------------------------------------------------------ */

table *monarch_peer_table_new(void) {
    table *t = calloc(1, sizeof *t);
    if (t)
        pthread_mutex_init(&t->lock, NULL);
    return t;
}

static struct shared *new_shared(uint64_t size, uint64_t block_bytes, const uint64_t *sums,
                                 const unsigned char *digests, int is_whole) {
    uint64_t blocks = size / block_bytes + (size % block_bytes != 0);
    /* A file with more than UINT32_MAX blocks is refused: each block takes 25 bytes of this table,
     * and no real file has that many blocks. */
    if (blocks > UINT32_MAX)
        return NULL;
    struct shared *f = calloc(1, sizeof *f + blocks * (sizeof *f->sums + sizeof *f->digests + 1));
    if (!f)
        return NULL;
    f->sums = (uint64_t *)(f + 1);
    f->digests = (struct monarch_digest *)(f->sums + blocks);
    f->there = (unsigned char *)(f->digests + blocks);
    f->size = size;
    f->block_bytes = block_bytes;
    f->blocks = blocks;
    f->users = 1;
    f->knows_sums = sums || !is_whole;
    f->knows_digests = sums && digests;
    if (sums)
        memcpy(f->sums, sums, blocks * sizeof *sums);
    if (f->knows_digests)
        memcpy(f->digests, digests, blocks * sizeof *f->digests);
    memset(f->there, is_whole, blocks);
    return f;
}

int monarch_peer_table_share(table *t, uint32_t source, uint64_t path_hash, uint64_t size,
                             int64_t mtime_ns, int fd, uint64_t block_bytes, const uint64_t *sums,
                             const unsigned char *digests, int is_whole) {
    if (block_bytes == 0 || block_bytes > LARGEST_BLOCK || size > INT64_MAX)
        return -EINVAL;
    struct shared *f = new_shared(size, block_bytes, sums, digests, is_whole != 0);
    if (!f)
        return -ENOMEM;
    f->source = source;
    f->path_hash = path_hash;
    f->mtime_ns = mtime_ns;
    f->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (f->fd < 0) {
        int error = errno; /* older libcs change errno in free */
        free(f);
        return -error;
    }
    /* The lock is held until the replacement is complete, so that each request is answered with
     * either the old file or the new one. */
    pthread_mutex_lock(&t->lock);
    struct shared **to = find(t, source, path_hash), *old = *to;
    f->next = old ? old->next : NULL;
    *to = f;
    if (old)
        __atomic_store_n(&old->is_withdrawn, 1, __ATOMIC_RELEASE);
    else
        t->length++;
    pthread_mutex_unlock(&t->lock);
    if (old) {
        leave(t, old);
        wake(t, source, path_hash);
    }
    return 0;
}

int monarch_peer_table_block(table *t, uint32_t source, uint64_t path_hash, uint64_t block,
                             uint64_t sum) {
    pthread_mutex_lock(&t->lock);
    struct shared *f = *find(t, source, path_hash);
    int is_known = f && block < f->blocks;
    if (is_known && !__atomic_load_n(&f->there[block], __ATOMIC_RELAXED)) {
        f->sums[block] = sum;
        __atomic_store_n(&f->there[block], 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&t->lock);
    if (is_known)
        wake(t, source, path_hash);
    return is_known ? 0 : -ENOENT;
}

int monarch_peer_table_withdraw(table *t, uint32_t source, uint64_t path_hash) {
    pthread_mutex_lock(&t->lock);
    struct shared **at = find(t, source, path_hash), *f = *at;
    if (f) {
        *at = f->next;
        t->length--;
        __atomic_store_n(&f->is_withdrawn, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&t->lock);
    if (!f)
        return -ENOENT;
    leave(t, f);
    wake(t, source, path_hash);
    return 0;
}

uint64_t monarch_peer_table_length(table *t) {
    pthread_mutex_lock(&t->lock);
    uint64_t n = t->length;
    pthread_mutex_unlock(&t->lock);
    return n;
}

void monarch_peer_table_free(table *t) {
    for (int i = 0; i < SLOTS; i++)
        while (t->slot[i]) {
            struct shared *f = t->slot[i];
            t->slot[i] = f->next;
            leave(t, f);
        }
    pthread_mutex_destroy(&t->lock);
    free(t);
}

struct monarch_peer_server *monarch_peer_server_start(table *t,
                                                      const struct monarch_peer_bounds *bounds,
                                                      const unsigned char *content_key) {
    struct monarch_peer_files files = {t,      open_shared, available,   is_coming,
                                       sum_of, check,       close_shared};
    struct monarch_peer_server *s = monarch_peer_serve(&files, bounds, content_key);
    pthread_mutex_lock(&t->lock);
    t->server = s;
    pthread_mutex_unlock(&t->lock);
    return s;
}

void monarch_peer_server_stop(table *t, struct monarch_peer_server *s) {
    pthread_mutex_lock(&t->lock);
    t->server = NULL;
    pthread_mutex_unlock(&t->lock);
    monarch_peer_end(s);
}

int monarch_digest_of(const unsigned char *content_key, const char *bytes, uint64_t n,
                      unsigned char *digest) {
    struct monarch_mac *m = monarch_mac_new(content_key);
    if (!m)
        return -1;
    monarch_mac_begin(m, 0);
    monarch_mac_add(m, bytes, n);
    int has_one = monarch_mac_end(m, digest);
    monarch_mac_free(m);
    return has_one ? 0 : -1;
}
