#include "testing/testing.h"

#include <stdlib.h>

#include "copy/source_file.h"
#include "engine/fair_queue.h"
#include "shared/doorbell.h"
#include "shared/xxh3.h"

uint64_t monarch_xxh3_in_pieces(const char *data, uint64_t len, uint64_t piece) {
    struct xxh3_stream s;
    monarch_xxh3_begin(&s);
    for (uint64_t at = 0; at < len; at += piece)
        monarch_xxh3_add(&s, data + at, len - at < piece ? len - at : piece);
    return monarch_xxh3_end(&s);
}

int monarch_want_file(struct monarch_clients *m, uint64_t id) {
    return monarch_set_bit(&m->wanted, id);
}

void monarch_ring_engine(struct monarch_clients *m) { monarch_ring_for_demand(m, MONARCH_ORIGINS); }

uint64_t monarch_stamp_of(uint64_t salt, uint64_t id) { return monarch_stamp(salt, id); }

void monarch_fast_after(uint64_t n, const uint64_t *ns, uint8_t *is_fast) {
    const unsigned source = 3;
    struct monarch_control *control = calloc(1, sizeof *control);
    struct monarch_engine *engine = calloc(1, sizeof *engine);
    for (uint64_t i = 0; control && engine && i < n; i++) {
        engine->control = control;
        monarch_note_speed(engine, source, ns[i]);
        is_fast[i] = control->fast_sources == 1U << source;
    }
    free(engine);
    free(control);
}

uint64_t monarch_meet_all(const uint32_t *shares, const uint8_t *ranks, const uint8_t *places,
                          uint64_t n, uint32_t *met) {
    struct fair_queue q = {.share = shares};
    uint64_t demand[MONARCH_DEMANDS] = {0}, taken[MONARCH_DEMANDS] = {0}, count = 0;
    struct line line;
    struct waiting w;
    for (uint64_t i = 0; i < n; i++)
        demand[places[i]] = monarch_demand(i, 0, 0, ranks[i]);
    monarch_line_up(&line, &q, demand, taken, 0);
    while (monarch_next_waiting(&line, &w)) {
        taken[w.place] = w.demand;
        met[count++] = (uint32_t)monarch_demand_entry(w.demand);
    }
    return count;
}

void monarch_serve_in_order(const uint32_t *shares, const uint8_t *ranks, const uint8_t *places,
                            const uint64_t *since, uint64_t n, uint64_t rounds, uint32_t *served) {
    static const uint64_t nothing[MONARCH_DEMANDS];
    struct fair_queue q = {.share = shares};
    uint64_t demand[MONARCH_DEMANDS] = {0};
    unsigned next = 0;
    for (uint64_t round = 0; round < rounds; round++) {
        struct line line;
        struct waiting w;
        for (uint64_t i = 0; i < n; i++)
            demand[places[i]] = since[i] <= round ? monarch_demand(i, 0, 0, ranks[i]) : 0;
        monarch_line_up(&line, &q, demand, nothing, next);
        served[round] = 0;
        if (monarch_next_waiting(&line, &w)) {
            next = monarch_served_reader(&line, &q, &w);
            served[round] = (uint32_t)monarch_demand_entry(w.demand) + 1;
        }
    }
}
