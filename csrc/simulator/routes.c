/* The routes by which a node can get a file: from a copy, or from the file system. */
#include "simulator/state.h"

static double end_of(struct monarch_sim *s, double now, uint32_t node, const struct route *w,
                     double bytes, int take) {
    double end = w->from == MONARCH_SIM_LOCAL
                     ? machine_local(&s->machine, now, node, w->cls, bytes, take)
                     : machine_remote(&s->machine, now, node, w->holder, w->cls, bytes, take);
    return end > w->whole ? end : w->whole;
}

struct route sim_best_route(struct monarch_sim *s, double now, uint32_t node, int32_t file,
                            int64_t reached) {
    double bytes = size_of(s, file);
    struct route best = {-1, 0, MONARCH_SIM_PFS, 0, 0, -1};
    for (int32_t i = s->first_copy[file]; i >= 0; i = s->copy[i].next) {
        const struct copy *c = &s->copy[i];
        int is_here = (uint32_t)c->node == node;
        /* An incomplete copy is usable only if the file's owner is making it. Other nodes then wait
         * for it, because only the owner may read the file from the file system. */
        int is_owners = s->job.owner && s->job.owner[file] == c->node;
        if (c->at < 0 || (c->at > now && !is_owners) || (!is_here && !s->job.reads_remote))
            continue;
        if (!is_here && s->job.copy_due && s->job.copy_due[i] >= reached)
            continue;
        struct route w = {0,
                          c->at,
                          is_here ? MONARCH_SIM_LOCAL : MONARCH_SIM_REMOTE,
                          (uint32_t)c->node,
                          (uint32_t)c->cls,
                          c->epoch};
        w.end = end_of(s, now, node, &w, bytes, 0);
        /* Among equally fast routes, the node's own copy is preferred, because it uses no shared
         * resource. */
        if (best.end < 0 || w.end < best.end || (w.end == best.end && is_here))
            best = w;
    }
    if (best.end >= 0 && s->job.weighs_pfs && sim_reader(s, node, file) == node &&
        pfs_guess(&s->pfs, now, node, bytes) < best.end)
        best = (struct route){0, 0, MONARCH_SIM_PFS, 0, 0, -1};
    return best;
}

void sim_send(struct monarch_sim *s, double now, uint32_t from, uint32_t to, uint32_t who,
              double bytes, double earliest) {
    struct transfer t = {who, from, to, bytes, 0, earliest};
    links_ask(&s->machine.links, now, t);
}

double sim_take_route(struct monarch_sim *s, double now, uint32_t node, const struct route *w,
                      uint32_t who, double bytes) {
    if (s->job.fair_links && w->from == MONARCH_SIM_REMOTE) {
        double end = machine_local(&s->machine, now, w->holder, w->cls, bytes, 1);
        sim_send(s, now, w->holder, node, who, bytes, end > w->whole ? end : w->whole);
        return -1;
    }
    return end_of(s, now, node, w, bytes, 1);
}

void sim_keep(struct monarch_sim *s, double now, uint32_t node, int32_t file, int32_t epoch) {
    for (int32_t i = s->first_copy[file]; i >= 0; i = s->copy[i].next) {
        struct copy *c = &s->copy[i];
        if ((uint32_t)c->node != node || c->at >= 0)
            continue;
        c->at = now;
        c->epoch = epoch;
        /* The write occupies the class from s->now on, although the file arrives only later, at
         * `now`. A class serves requests in the order in which they are made. So if the write began
         * at `now`, all requests made in between would wait until it ends. */
        machine_write(&s->machine, s->now, node, (uint32_t)c->cls, size_of(s, file));
        return;
    }
}
