/* The loop over the events of a simulation. */
#include "simulator/simulator.h"

#include <math.h>
#include <stdlib.h>

#include "simulator/state.h"

/* Continues the work of the thread `who`, whose file has arrived from the file system or from
 * another node. */
static void arrive(struct monarch_sim *s, uint32_t who, double at) {
    if (who < s->job.nodes * s->threads)
        sim_staged(s, who, at);
    else
        sim_filled(s, who - s->job.nodes * s->threads, at);
}

static void take_from_pfs(struct monarch_sim *s, double now) {
    double end;
    struct request r = pfs_take(&s->pfs, now, &end);
    if (r.who >= s->checkpoint)
        sim_checkpoint_written(s, end);
    else
        sim_has_come(s, &r, end);
}

static void take_from_links(struct monarch_sim *s, double now) {
    struct transfer t = links_take(&s->machine.links, now);
    arrive(s, t.who, now > t.earliest ? now : t.earliest);
}

int monarch_sim_run(struct monarch_sim *s) {
    uint32_t first_class_thread = s->job.nodes * s->threads;
    double now = 0;
    while (s->step < (uint64_t)s->job.epochs * s->job.steps) {
        double served = pfs_next(&s->pfs), sent = links_next(&s->machine.links);
        double next = served < sent ? served : sent;
        int is_idle = !s->heap.n && isinf(next);
        if (!s->is_started && (!s->job.fills_first || is_idle)) {
            sim_start_ranks(s, now);
            continue;
        }
        if (is_idle)
            return -1;
        if (!s->heap.n || next < s->heap.event[0].at) {
            s->now = now = next;
            if (served <= sent)
                take_from_pfs(s, now);
            else
                take_from_links(s, now);
            continue;
        }
        struct event e = heap_pop(&s->heap);
        s->now = now = e.at;
        if (e.who == s->checkpoint)
            sim_begin_checkpoint(s, now);
        else if (e.who >= first_class_thread)
            sim_class_thread(s, e.who - first_class_thread, now);
        else if (!sim_staging_thread(s, e.who, now))
            return 1;
    }
    s->out->pfs_busy = s->pfs.busy;
    return 0;
}

int monarch_sim_give(struct monarch_sim *s, const struct monarch_sim_epoch *epoch) {
    struct known *k = &s->known[s->given % EPOCHS_KNOWN];
    uint64_t n = per_epoch(s) * end_of_ranks(s);
    uint64_t over = s->given < EPOCHS_KNOWN ? 0 : s->given - EPOCHS_KNOWN + 1;
    for (uint32_t i = 0; i < end_of_ranks(s); i = next_rank(s, i))
        while (s->rank[i].dropped < over * per_epoch(s))
            sim_drop(s, i);
    if (!k->at && !(k->at = malloc(n * sizeof *k->at)))
        return 0;
    for (uint64_t i = 0; i < n; i++)
        k->at[i] = -1;
    k->told = *epoch;
    s->given++;
    return 1;
}

void monarch_sim_free(struct monarch_sim *s) {
    machine_close(&s->machine);
    pfs_close(&s->pfs);
    for (int i = 0; i < EPOCHS_KNOWN; i++)
        free(s->known[i].at);
    free(s->heap.event);
    free(s->rank);
    free(s->staging);
    free(s->class_thread);
    free(s->copy);
    free(s->first_copy);
    free(s->reused);
    free(s->reading);
    free(s->joined);
    free(s->cursor);
    free(s->list_end);
    free(s);
}

struct monarch_sim *monarch_sim_new(const struct monarch_sim_job *job,
                                    struct monarch_sim_result *result) {
    struct monarch_sim *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->job = *job;
    s->out = result;
    s->on_arrival = arrive;
    s->on_room = sim_wake;
    for (uint32_t n = 0; n < job->nodes; n++) {
        s->ranks += job->ranks[n];
        if (threads_of(s, n) > s->threads)
            s->threads = threads_of(s, n);
    }
    for (uint32_t c = 1; c < job->classes; c++)
        s->class_threads += job->nodes * job->threads[c];
    s->checkpoint = job->nodes * s->threads + s->class_threads;
    size_t lists = (size_t)job->nodes * job->classes;
    int has_machine = machine_open(&s->machine, job, s->checkpoint);
    has_machine &= pfs_open(&s->pfs, job, s->checkpoint + job->nodes);
    s->heap.event = calloc((size_t)s->checkpoint + 1, sizeof *s->heap.event);
    s->rank = calloc(end_of_ranks(s), sizeof *s->rank);
    s->staging = calloc((size_t)job->nodes * s->threads, sizeof *s->staging);
    s->class_thread = calloc((size_t)s->class_threads + 1, sizeof *s->class_thread);
    s->copy = calloc(job->copies + 1, sizeof *s->copy);
    s->first_copy = calloc((size_t)job->files + 1, sizeof *s->first_copy);
    s->reused = calloc((size_t)job->files * EPOCHS_KNOWN + 1, sizeof *s->reused);
    size_t owned = job->owner ? job->files : 0;
    s->reading = malloc((owned + 1) * sizeof *s->reading);
    s->joined = calloc((size_t)s->checkpoint + 1, sizeof *s->joined);
    s->cursor = calloc(lists, sizeof *s->cursor);
    s->list_end = calloc(lists, sizeof *s->list_end);
    if (!has_machine || !s->heap.event || !s->rank || !s->staging || !s->class_thread || !s->copy ||
        !s->first_copy || !s->reused || !s->reading || !s->joined || !s->cursor || !s->list_end) {
        monarch_sim_free(s);
        return NULL;
    }
    for (size_t f = 0; f < owned; f++)
        s->reading[f] = PFS_NONE;
    sim_add_copies(s);
    return s;
}
