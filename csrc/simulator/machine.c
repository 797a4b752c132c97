#include "simulator/machine.h"

#include <stdlib.h>

int machine_open(struct machine *m, const struct monarch_sim_job *job, uint32_t askers) {
    uint32_t nodes = job->nodes;
    m->job = job;
    m->class_free = calloc((size_t)nodes * job->classes, sizeof(double));
    m->in_free = calloc(nodes, sizeof(double));
    m->out_free = calloc(nodes, sizeof(double));
    return links_open(&m->links, job, askers) && m->class_free && m->in_free && m->out_free;
}

void machine_close(struct machine *m) {
    free(m->class_free);
    free(m->in_free);
    free(m->out_free);
    links_close(&m->links);
}

static inline double later(double a, double b) { return a > b ? a : b; }

static inline double serve(double *is_free, double now, double seconds, int take) {
    double end = later(now, *is_free) + seconds;
    if (take)
        *is_free = end;
    return end;
}

/* All threads of a class share the class's rate equally, so one thread gets rate / threads (NoPFS,
 * section 4). */
double machine_local(struct machine *m, double now, uint32_t node, uint32_t cls, double bytes,
                     int take) {
    size_t at = (size_t)node * m->job->classes + cls;
    double rate = m->job->read_rate[at];
    double end = serve(&m->class_free[at], now, bytes / rate, take);
    return later(end, now + bytes * m->job->threads[cls] / rate);
}

double machine_forward(struct machine *m, double now, uint32_t from, uint32_t to, double bytes,
                       int take) {
    if (m->job->fair_links)
        return links_guess(&m->links, now, from, to, bytes);
    double out = serve(&m->out_free[from], now, bytes / m->job->network[from], take);
    double in = serve(&m->in_free[to], now, bytes / m->job->network[to], take);
    return later(out, in);
}

double machine_remote(struct machine *m, double now, uint32_t node, uint32_t holder, uint32_t cls,
                      double bytes, int take) {
    double end = machine_local(m, now, holder, cls, bytes, take);
    return later(end, machine_forward(m, now, holder, node, bytes, take));
}

void machine_write(struct machine *m, double now, uint32_t node, uint32_t cls, double bytes) {
    size_t at = (size_t)node * m->job->classes + cls;
    serve(&m->class_free[at], now, bytes / m->job->write_rate[at], 1);
}
