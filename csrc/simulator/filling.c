/* The storage classes' own threads, which make the planned copies. */
#include "simulator/state.h"

static uint32_t list_of(const struct monarch_sim *s, const struct class_thread *t) {
    return t->node * s->job.classes + t->cls;
}

void sim_filled(struct monarch_sim *s, uint32_t number, double now) {
    struct class_thread *t = &s->class_thread[number];
    struct copy *c = &s->copy[t->copy];
    double bytes = size_of(s, c->file);
    double rate = s->job.write_rate[list_of(s, t)] / s->job.threads[t->cls];
    double end = now + bytes / rate;
    if (c->at < 0) { /* sim_keep has not made this copy in the meantime */
        c->at = end;
        c->epoch = s->is_started ? (int32_t)(s->step / s->job.steps) : -1;
        machine_write(&s->machine, s->now, t->node, t->cls, bytes);
    }
    heap_push(&s->heap, end, s->job.nodes * s->threads + number);
}

void sim_class_thread(struct monarch_sim *s, uint32_t number, double now) {
    struct class_thread *t = &s->class_thread[number];
    uint32_t list = list_of(s, t);
    while (s->cursor[list] < s->list_end[list] && s->copy[s->cursor[list]].at >= 0)
        s->cursor[list]++;
    if (s->cursor[list] == s->list_end[list])
        return;
    t->copy = (uint32_t)s->cursor[list]++;
    int32_t file = s->copy[t->copy].file;
    double bytes = size_of(s, file);
    int64_t reached = s->job.copy_due ? s->job.copy_due[t->copy] : 0;
    struct route w = sim_best_route(s, now, t->node, file, reached);
    uint32_t who = s->job.nodes * s->threads + number;
    if (w.from == MONARCH_SIM_PFS) {
        sim_read(s, now, PFS_LAST, who, bytes);
        return;
    }
    double end = sim_take_route(s, now, t->node, &w, who, bytes);
    if (end >= 0)
        sim_filled(s, number, end);
}

static void add_threads(struct monarch_sim *s) {
    uint32_t number = 0;
    for (uint32_t n = 0; n < s->job.nodes; n++)
        for (uint32_t c = 1; c < s->job.classes; c++)
            for (uint32_t i = 0; i < s->job.threads[c]; i++) {
                s->class_thread[number] = (struct class_thread){0, n, (uint8_t)c};
                if (s->job.fills)
                    heap_push(&s->heap, 0, s->job.nodes * s->threads + number);
                number++;
            }
}

void sim_add_copies(struct monarch_sim *s) {
    for (uint32_t f = 0; f < s->job.files; f++)
        s->first_copy[f] = -1;
    for (uint64_t i = 0; i < s->job.copies; i++) {
        struct copy *c = &s->copy[i];
        c->node = s->job.copy_node[i];
        c->file = s->job.copy_file[i];
        c->cls = s->job.copy_class[i];
        c->at = -1;
        c->next = s->first_copy[c->file];
        s->first_copy[c->file] = (int32_t)i;
        uint32_t list = (uint32_t)c->node * s->job.classes + (uint32_t)c->cls;
        if (!s->list_end[list])
            s->cursor[list] = i;
        s->list_end[list] = i + 1;
    }
    add_threads(s);
}
