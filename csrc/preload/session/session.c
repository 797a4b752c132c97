#include "preload/session/session.h"

#include <stdlib.h>
#include <string.h>

#include "shared/sys.h"

struct session *monarch_current;

static __thread unsigned my_slot;
static uint32_t next_slot;

static const struct monarch_control nobody = {.state = MONARCH_CLOSED};
struct session monarch_waiting = {.control = &nobody, .released = 1};

struct session *monarch_session_at(unsigned number) {
    struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    return s && s->number == number ? s : &monarch_waiting;
}

struct monarch_stats *monarch_my_stats(struct session *s) {
    if (__builtin_expect(!my_slot, 0))
        my_slot = 1 + __atomic_fetch_add(&next_slot, 1, __ATOMIC_RELAXED) +
                  (unsigned)sys6(SYS_getpid, 0, 0, 0, 0, 0, 0);
    return &s->clients->stats[my_slot % MONARCH_STAT_SLOTS];
}

int monarch_source_on(const struct session *s, uint64_t dev, int from) {
    for (uint32_t i = (uint32_t)from; i < s->control->sources; i++)
        if (s->control->source[i].dev == dev)
            return (int)i;
    return -1;
}

int monarch_tier_on(const struct session *s, uint64_t dev, int from) {
    for (uint32_t i = (uint32_t)from; i < s->control->tiers; i++)
        if (s->control->tier[i].usable && s->control->tier[i].dev == dev)
            return (int)i;
    return -1;
}

/* --- the rank --------------------------------------------------------------------------------- */

unsigned monarch_rank;

/* The variables in which launchers store a rank's number. Launchers may be nested: Slurm may start
 * mpiexec, which may start torchrun. The innermost launcher numbers the ranks, so the variables of
 * inner launchers come first. */
static const char *const variables[] = {
    "LOCAL_RANK",                 /* torchrun, Lightning, DeepSpeed, accelerate */
    "OMPI_COMM_WORLD_LOCAL_RANK", /* Open MPI */
    "MV2_COMM_WORLD_LOCAL_RANK",  /* MVAPICH */
    "MPI_LOCALRANKID",            /* MPICH, Intel MPI */
    "PALS_LOCAL_RANKID",          /* Cray */
    "FLUX_TASK_LOCAL_ID",         /* Flux */
    "SLURM_LOCALID",              /* srun */
};

/* Returns 1 + the number that `text` contains. Returns 0 if `text` is not a number, or if the
 * number is too large. */
static unsigned number_of(const char *text) {
    unsigned n = 0;
    for (; *text >= '0' && *text <= '9' && n < MONARCH_RANKS; text++)
        n = n * 10 + (unsigned)(*text - '0');
    return *text || n >= MONARCH_RANKS - 1 ? 0 : n + 1;
}

void monarch_rank_init(void) {
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *text = secure_getenv(variables[i]);
        if (text && *text) {
            unsigned rank = number_of(text);
            /* monarch_rank is written only if it changes. A write would cost a private page of
             * memory, and most processes have no rank. */
            if (rank)
                monarch_rank = rank;
            return;
        }
    }
}

/* --- telling the daemon ----------------------------------------------------------------------- */

void monarch_ring(struct session *s) {
    __atomic_fetch_add(&s->clients->doorbell, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&s->clients->sleeping, __ATOMIC_SEQ_CST))
        sys_futex_wake(&s->clients->doorbell);
}

int monarch_may_hint_scan(const struct session *s) {
    const struct monarch_clients *m = s->clients;
    uint64_t n = __atomic_load_n(&m->scan_hints, __ATOMIC_RELAXED) % MONARCH_SCAN_HINTS;
    return !(__atomic_load_n(&m->scan_hint[n].ticket, __ATOMIC_RELAXED) & 3);
}

void monarch_hint_scan(struct session *s, unsigned source, const char *path, size_t len,
                       int is_part) {
    struct monarch_clients *m = s->clients;
    if (len >= MONARCH_SCAN_HINT_PATH)
        return;
    uint64_t n = __atomic_fetch_add(&m->scan_hints, 1, __ATOMIC_RELAXED);
    struct monarch_scan_hint *slot = &m->scan_hint[n % MONARCH_SCAN_HINTS];
    uint64_t seen = __atomic_load_n(&slot->ticket, __ATOMIC_ACQUIRE);
    if (seen & 3)
        return;               /* the daemon has not read the path in this slot yet */
    uint64_t mine = seen + 5; /* a ticket with a new number and the state "being written" */
    if (!__atomic_compare_exchange_n(&slot->ticket, &seen, mine, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return;
    slot->source = source;
    slot->path_len = (uint32_t)len;
    slot->is_part = (uint32_t)is_part;
    memcpy(slot->path, path, len);
    /* The exchange fails if the daemon has freed the slot, because the daemon assumed that this
     * thread was killed. */
    if (__atomic_compare_exchange_n(&slot->ticket, &mine, mine + 1, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED))
        monarch_ring(s);
}
