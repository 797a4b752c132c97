/* Reads files from the file system. If a file has an owner, usually only the owner reads it. The
 * owner then sends it to all nodes that have requested it before the end of the read. If a file has
 * no owner, each node that needs it reads it. */
#include "simulator/state.h"

static int is_staging(const struct monarch_sim *s, uint32_t who) {
    return who < s->job.nodes * s->threads;
}

static struct class_thread *class_thread_of(struct monarch_sim *s, uint32_t who) {
    return &s->class_thread[who - s->job.nodes * s->threads];
}

static uint32_t node_of(struct monarch_sim *s, uint32_t who) {
    return is_staging(s, who) ? who / s->threads : class_thread_of(s, who)->node;
}

static int32_t file_of(struct monarch_sim *s, uint32_t who) {
    if (!is_staging(s, who))
        return s->copy[class_thread_of(s, who)->copy].file;
    return file_at(s, s->staging[who].rank, s->staging[who].access);
}

/* Returns the epoch of the staging thread's access, if its arrays determine from where each access
 * reads its file. Otherwise, and for a thread of a storage class, returns NULL. */
static const struct monarch_sim_epoch *told_to(struct monarch_sim *s, uint32_t who) {
    if (!is_staging(s, who))
        return NULL;
    const struct monarch_sim_epoch *told = &known_of(s, s->staging[who].access)->told;
    return told->holder ? told : NULL;
}

/* Returns the address of the file's element in `reading`, or NULL if reads of the file cannot be
 * joined. The element records the current read of the file, so that later askers join it. */
static uint32_t *note_of(struct monarch_sim *s, uint32_t who, int32_t file) {
    int is_owned = s->job.owner && s->job.owner[file] >= 0;
    return is_owned && !told_to(s, who) ? &s->reading[file] : NULL;
}

/* Returns whether the node `reader` reads a sample for itself: whether a staging thread of `reader`
 * is among the read's askers. The asker `first` has started the read; the others have joined it. */
static int has_own_sample(struct monarch_sim *s, uint32_t first, uint32_t reader) {
    for (uint32_t who = first; who != PFS_NONE; who = s->joined[who])
        if (is_staging(s, who) && node_of(s, who) == reader)
            return 1;
    return 0;
}

enum monarch_sim_from sim_read(struct monarch_sim *s, double now, uint64_t priority, uint32_t who,
                               double bytes) {
    int32_t file = file_of(s, who);
    uint32_t node = node_of(s, who), reader = sim_reader(s, node, file);
    const struct monarch_sim_epoch *told = told_to(s, who);
    uint32_t *note = note_of(s, who, file);
    /* Usually the file's owner reads the file. But if no copy of the file will be made, the node
     * that needs the file reads it. */
    if (told && !told->into[place_of(s, s->staging[who].rank, s->staging[who].access)])
        reader = node;
    s->joined[who] = PFS_NONE;
    if (note && *note != PFS_NONE) {
        int is_second = has_own_sample(s, *note, reader);
        uint32_t last = *note;
        while (s->joined[last] != PFS_NONE)
            last = s->joined[last];
        s->joined[last] = who;
        pfs_hurry(&s->pfs, now, priority, *note);
        return reader != node ? MONARCH_SIM_REMOTE
               : is_second    ? MONARCH_SIM_STAGING
                              : MONARCH_SIM_PFS;
    }
    if (note)
        *note = who;
    pfs_ask(&s->pfs, now, priority, reader, who, bytes);
    return reader == node ? MONARCH_SIM_PFS : MONARCH_SIM_REMOTE;
}

void sim_has_come(struct monarch_sim *s, const struct request *r, double end) {
    int32_t file = file_of(s, r->who);
    uint32_t *note = note_of(s, r->who, file);
    uint64_t epoch =
        is_staging(s, r->who) ? s->staging[r->who].access / per_epoch(s) : s->step / s->job.steps;
    s->out->pfs_bytes[epoch] += r->bytes;
    s->out->filled[r->node] +=
        r->bytes - (has_own_sample(s, r->who, r->node) ? size_of(s, file) : 0);
    if (note) {
        *note = PFS_NONE;
        sim_keep(s, end, r->node, file, s->is_started ? (int32_t)epoch : -1);
    }
    for (uint32_t next, who = r->who; who != PFS_NONE; who = next) {
        uint32_t node = node_of(s, who);
        double at = end;
        next = s->joined[who];
        /* The owner forwards the file while it receives it. So the transfer begins now, but ends no
         * earlier than `end`, when the owner has the whole file. */
        if (node != r->node && s->job.fair_links) {
            sim_send(s, s->now, r->node, node, who, size_of(s, file), end);
            continue;
        }
        if (node != r->node) {
            double link = machine_forward(&s->machine, s->now, r->node, node, size_of(s, file), 1);
            at = link > end ? link : end;
        }
        s->on_arrival(s, who, at);
    }
}
