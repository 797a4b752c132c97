/* Collects the entries that a scan's threads find, in batches that Python takes. */
#include <stdlib.h>
#include <string.h>

#include "scan/scan.h"
#include "shared/doorbell.h"
#include "shared/sys.h"

#define BATCH_ENTRIES 4096
#define BATCH_POOL (512 * 1024)

void monarch_count_scan_error(struct monarch_scan *s, int error) {
    pthread_mutex_lock(&s->lock);
    s->errors++;
    if (!s->error)
        s->error = error;
    pthread_mutex_unlock(&s->lock);
}

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

/* Appends the entries of `b` to `to` and returns 1. If `to` has too little room, appends no entry
 * and returns 0. */
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
    if (!to->count || b->renames < to->renames)
        to->renames = b->renames;
    to->count += b->count;
    to->pool_used += b->pool_used;
    b->count = b->pool_used = 0;
    return 1;
}

/* If the last batch that waits for Python has room, the entries are appended to it. A single thread
 * finds only a few files in BATCH_NS. So, with merged batches, one iteration of Python's loop
 * handles the files of many threads. */
void monarch_hand_over_batch(struct monarch_scan *s, struct monarch_batch **batch) {
    if (!*batch || !(*batch)->count)
        return;
    uint64_t now = monarch_now_ns();
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

void monarch_hand_over_in_time(struct monarch_scan *s, struct monarch_batch **batch) {
    if (*batch && (*batch)->count && monarch_now_ns() - (*batch)->begun_ns > BATCH_NS)
        monarch_hand_over_batch(s, batch);
}

uint64_t monarch_renames_before(const struct monarch_scan *s) {
    return s->clients ? __atomic_load_n(&s->clients->renames, __ATOMIC_SEQ_CST) : 0;
}

static void add_to_batch(struct monarch_batch *b, struct monarch_entry *e, const char *path,
                         const char *target, uint64_t renames) {
    size_t len = strlen(path);
    if (!b->count) {
        b->begun_ns = monarch_now_ns();
        b->renames = renames;
    }
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

void monarch_report(struct monarch_scan *s, struct monarch_batch **batch, struct monarch_entry *e,
                    const char *path, const char *target, uint64_t renames) {
    if (*batch && ((*batch)->count == (*batch)->capacity ||
                   (*batch)->pool_used + 2 * MONARCH_PATH_MAX > (*batch)->pool_bytes))
        monarch_hand_over_batch(s, batch);
    if (!*batch && !(*batch = new_batch())) {
        monarch_count_scan_error(s, ENOMEM);
        return;
    }
    add_to_batch(*batch, e, path, target, renames);
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
