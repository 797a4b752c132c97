/* The thread that replaces live mappings by mappings of copies. The thread runs as long as any
 * mapping waits for its copy.
 *
 * The thread makes only raw system calls, and leaves no descriptor open. It blocks all signals but
 * one: the signal with which libc's setuid interrupts every thread.
 *
 * Names in brackets in the comments are steps of the model in tests/csrc/test_mapping_model.py. */
#include "preload/mappings/move.h"

#include <errno.h>
#include <pthread.h>
#include <sys/prctl.h>

#include "preload/descriptors/locked_files.h"
#include "preload/process/calls.h"
#include "preload/process/momentary.h"
#include "preload/promotion/promote.h"
#include "preload/session/copies.h"

/* Interval [ns] between two passes of the thread over the table: SOON_NS while one of the copies is
 * being filled, otherwise LATER_NS. */
#define SOON_NS 10000000L
#define LATER_NS 20000000L
/* Size of the thread's stack [bytes]. The thread's own frames need 6 KiB. The stack also holds the
 * static thread-local variables of glibc, and the handler of the one signal that is not blocked. */
#define STACK 262144
/* Maximum number of attempts to map a complete copy. An attempt fails if the process lacks a free
 * descriptor or address space. After TRIES failed attempts, the mapping stays a mapping of the
 * source's file. */
#define TRIES 500
/* If the daemon makes no progress for this time [ns], all waiting mappings stay mappings of the
 * source's files. */
#define SILENCE_NS 60000000000ULL

/* --- replacing ------------------------------------------------------------------------------- */

enum verdict { LATER, SOON, NOW, NEVER };

static enum verdict judge(const struct slot *s, uint64_t *word) {
    struct session *now = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    struct monarch_wanted w = {.session = s->session, .id = s->id, .version = s->version};
    if (now != s->session || !monarch_is_serving(now))
        return NEVER;
    *word = monarch_word_of(&w);
    unsigned state = MONARCH_WORD_STATE(*word);
    const struct monarch_entry *e = &monarch_entries(monarch_catalog_of(now))[s->id];
    if (state == MONARCH_BYPASS || monarch_is_replaced(&w) || monarch_entry_is_changed(now, e))
        return NEVER;
    if (state != MONARCH_PRESENT)
        return state == MONARCH_FILLING ? SOON : LATER;
    return monarch_is_off(now) || now->control->off ? LATER : NOW;
}

#define NO_COPY (-4096) /* differs from every negative errno */

/* Opens the copy. Returns its descriptor, or a negative errno. Returns NO_COPY if the copy must not
 * be used. */
static int open_copy(const struct slot *s, uint64_t word) {
    const struct monarch_control *k = s->session->control;
    const struct monarch_tier *tier = &k->tier[MONARCH_WORD_TIER(word)];
    const struct monarch_entry *e = &monarch_entries(monarch_catalog_of(s->session))[s->id];
    char path[MONARCH_COPY_PATH];
    struct stat st;
    monarch_copy_path(s->session, word, path);
    if (sys_fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return -ENOENT;
    /* A close of any descriptor of a file releases the process's POSIX locks on the file. The
     * caller later closes the copy's descriptor. So a copy on which the program may have locks is
     * not used. */
    if (!S_ISREG(st.st_mode) || st.st_dev != tier->dev || st.st_ino != e->copy_ino ||
        (uint64_t)st.st_size != e->size || monarch_has_locks(st.st_dev, st.st_ino))
        return NO_COPY;
    return sys_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
}

/* Maps the copy over the source's mapping. Returns 1 if the mapping was replaced. Returns 0 if the
 * kernel has refused a mapping; the caller may try again. Returns -1 if the last check has shown
 * that the mapping must not be replaced.
 *
 * First maps the copy at other addresses, to make sure that it can be mapped. Otherwise, a refusal
 * by the file system would leave nothing mapped at the addresses of the old mapping, because the
 * kernel removes the old mapping first. */
static int map_over(const struct slot *s, int copy, uint64_t word) {
    uint64_t n = s->end - s->begin, now;
    int flags = s->flags & (MAP_SHARED | MAP_PRIVATE | MAP_NORESERVE), done = 0;
    long trial = sys6(SYS_mmap, 0, (long)n, PROT_READ, flags, copy, (long)s->offset);
    if (!is_address(trial))
        return 0;
    /* The check is the step [check] of the model (tests/csrc/test_mapping_model.py), and mmap is
     * the step [map]. */
    if (judge(s, &now) == NOW && now == word &&
        monarch_is_mapped(s->begin, s->end, &s->file, s->offset,
                          (s->flags & MAP_TYPE) != MAP_PRIVATE)) {
        long r = sys6(SYS_mmap, (long)s->begin, (long)n, PROT_READ, flags | MAP_FIXED, copy,
                      (long)s->offset);
        /* if the kernel has no memory for another mapping, moves `trial` to the addresses of the
         * source's mapping */
        if (!is_address(r))
            r = sys6(SYS_mremap, trial, (long)n, (long)n, MREMAP_MAYMOVE | MREMAP_FIXED,
                     (long)s->begin, 0);
        done = is_address(r);
        if (done && s->advice)
            sys6(SYS_madvise, (long)s->begin, (long)n, s->advice, 0, 0, 0);
    } else {
        done = -1;
    }
    sys6(SYS_munmap, trial, (long)n, 0, 0, 0, 0);
    return done;
}

/* Puts the slot into the state REPLACING. From then on, a thread that is about to change the
 * slot's range waits for this thread. Returns 0 if the slot has changed since it was copied to
 * *seen, or if the lock was given up. These are the steps [take] and [mark] of the model
 * (tests/csrc/test_mapping_model.py). */
static int take(struct own *o, struct slot *s, const struct slot *seen) {
    int taken = 0;
    if (!monarch_slots_lock(o))
        return 0;
    if (GET(s->state) == WAITING && s->number == seen->number) {
        __atomic_store_n(&s->state, REPLACING, __ATOMIC_SEQ_CST);
        taken = 1;
    }
    monarch_slots_unlock(o);
    /* This thread first sets REPLACING and then checks given_up. A thread that gives up the lock
     * first sets given_up and then checks for REPLACING. So at least one of the two sees what the
     * other has set. This check is the step [given_up] of the model
     * (tests/csrc/test_mapping_model.py). */
    if (taken && monarch_slots_are_lost()) {
        __atomic_store_n(&s->state, WAITING, __ATOMIC_RELEASE);
        taken = 0;
    }
    return taken;
}

/* Counts a failed attempt, unless the slot has changed since it was copied to *seen. Frees the
 * slot if `hopeless` is 1, or if TRIES attempts have failed. This is the step [drop] of the model
 * (tests/csrc/test_mapping_model.py). */
static void drop(struct own *o, struct slot *s, const struct slot *seen, int hopeless) {
    if (!monarch_slots_lock(o))
        return;
    if (GET(s->state) == WAITING && s->number == seen->number && (++s->tries >= TRIES || hopeless))
        monarch_slot_free(s);
    monarch_slots_unlock(o);
}

/* Tries to replace the slot's mapping by a mapping of the copy. Opens the copy (step [open] of the
 * model) before it puts the slot into the state REPLACING. So if the tier's file system hangs
 * during the open, no other thread has to wait for the slot. */
static void replace(struct own *o, struct slot *s, const struct slot *seen, uint64_t word) {
    monarch_momentary_begin();
    int copy = open_copy(seen, word), done = 0;
    if (copy >= 0 && take(o, s, seen)) {
        done = map_over(seen, copy, word);
        s->tries++;
        /* The slot is released without the table's lock. If the process has given up the lock,
         * this thread cannot take it. But another thread may be waiting for the slot, so the slot
         * must be released. This is the step [release] of the model
         * (tests/csrc/test_mapping_model.py). */
        __atomic_store_n(&s->state, done || s->tries >= TRIES ? FREE : WAITING, __ATOMIC_RELEASE);
        if (monarch_slots_lock(o)) {
            monarch_slots_recount();
            monarch_slots_unlock(o);
        }
    } else if (copy < 0) {
        drop(o, s, seen, copy == NO_COPY);
    }
    if (copy >= 0)
        sys_close(copy);
    monarch_momentary_end();
    if (done > 0)
        __atomic_fetch_add(&monarch_my_stats(seen->session)->promotions, 1, __ATOMIC_RELAXED);
}

/* --- the thread ------------------------------------------------------------------------------ */

/* Returns whether the daemon's heartbeat has changed within the last SILENCE_NS. The session's
 * state is no sign of life, because it stays MONARCH_SERVING after the daemon was killed. beat:
 * the last heartbeat that this function has seen. since_ns: the time when it first saw that
 * heartbeat. */
static int lives(const struct session *s, uint64_t *beat, uint64_t *since_ns) {
    uint64_t now = monarch_now_ns(),
             seen = __atomic_load_n(&s->control->heartbeat, __ATOMIC_RELAXED);
    if (seen != *beat || !*since_ns) {
        *beat = seen;
        *since_ns = now;
    }
    return now - *since_ns < SILENCE_NS;
}

/* Passes once over all slots. Returns the time until the next pass [ns]. Returns 0 when no mapping
 * waits, or when the process has given up the lock of the table. In the model
 * (tests/csrc/test_mapping_model.py), this function makes the steps [look] and [judge] for each
 * slot, and then the step [leave]. */
static long look(struct own *o, uint64_t *beat, uint64_t *since_ns) {
    struct session *current = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    long next_ns = LATER_NS;
    int alive = current && monarch_is_serving(current) && lives(current, beat, since_ns);
    if (alive)
        monarch_tick(current);
    for (int i = 0; i < SLOTS && GET(monarch_mappings_waiting); i++) {
        if (__atomic_load_n(&monarch_slots[i].state, __ATOMIC_ACQUIRE) == FREE ||
            !monarch_slots_lock(o))
            continue;
        struct slot seen = monarch_slots[i];
        monarch_slots_unlock(o);
        uint64_t word = 0;
        enum verdict verdict = seen.state != WAITING ? LATER : alive ? judge(&seen, &word) : NEVER;
        if (verdict == NEVER)
            drop(o, &monarch_slots[i], &seen, 1);
        else if (verdict == NOW)
            replace(o, &monarch_slots[i], &seen, word);
        else if (verdict == SOON)
            next_ns = SOON_NS;
    }
    /* The rest of this function is the step [leave] of the model
     * (tests/csrc/test_mapping_model.py). */
    if (!monarch_slots_lock(o))
        return 0;
    monarch_slots_recount();
    if (!GET(monarch_mappings_waiting)) {
        SET(o->helper, 0);
        next_ns = 0;
    }
    monarch_slots_unlock(o);
    return next_ns;
}

static void *help(void *data) {
    struct own *o = data;
    uint64_t beat = 0, since_ns = 0;
    sys_signals(SIG_SETMASK, MOST_SIGNALS);
    __atomic_store_n(&o->tid, (uint32_t)sys6(SYS_gettid, 0, 0, 0, 0, 0, 0), __ATOMIC_RELEASE);
    sys6(SYS_prctl, PR_SET_NAME, (long)"monarch-maps", 0, 0, 0, 0);
    for (;;) {
        uint32_t bell = __atomic_load_n(&o->bell, __ATOMIC_ACQUIRE);
        long ns = look(o, &beat, &since_ns);
        if (!ns)
            return NULL;
        sys_futex_wait(&o->bell, bell, ns);
    }
}

int monarch_start_mover(struct own *o) {
    pthread_attr_t attr;
    pthread_t thread;
    /* Before glibc 2.34, these functions are in libpthread, which the program may not have
     * loaded. */
    if (!REAL(pthread_create) || !REAL(pthread_attr_init) || !REAL(pthread_attr_setstacksize) ||
        !REAL(pthread_attr_setdetachstate) || !REAL(pthread_attr_destroy) ||
        REAL(pthread_attr_init)(&attr) != 0)
        return 0;
    int started = REAL(pthread_attr_setstacksize)(&attr, STACK) == 0 &&
                  REAL(pthread_attr_setdetachstate)(&attr, PTHREAD_CREATE_DETACHED) == 0 &&
                  REAL(pthread_create)(&thread, &attr, help, o) == 0;
    REAL(pthread_attr_destroy)(&attr);
    return started;
}
