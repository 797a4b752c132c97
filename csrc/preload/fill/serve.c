#include "preload/fill/serve.h"

#include <errno.h>
#include <string.h>

#include "preload/descriptors/track.h"
#include "preload/fill/handover.h"
#include "preload/fill/progress.h"
#include "preload/fill/request.h"
#include "preload/process/log.h"
#include "preload/session/session.h"
#include "shared/claims.h"
#include "shared/sys.h"

/* Returns the text with which the log explains why an open gets the source's file. */
static const char *why_source(const struct session *s, const struct monarch_entry *e) {
    static const char *const reasons[16] = {
        "source: the catalog records no reason",
        "source: no tier has room",
        "source: excluded by the configuration",
        "source: the file has changed",
        "source: the file's copy could not be made",
        "source: the file has attributes that the catalog cannot hold",
    };
    static const char *const states[] = {
        "source: no copy yet", "source: a copy of the file is requested",
        "source: the file's copy is being made", "source: the file's copy could not be opened"};
    uint64_t word = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
    if (monarch_entry_is_changed(s, e))
        return reasons[MONARCH_CHANGED];
    unsigned state = MONARCH_WORD_STATE(word);
    return state < MONARCH_BYPASS ? states[state] : reasons[MONARCH_WORD_REASON(word)];
}

static void count_rank(struct session *s, uint64_t bytes, int missed) {
    if (__builtin_expect(!monarch_rank, 1))
        return;
    struct monarch_rank *r = &s->clients->rank[monarch_rank];
    __atomic_fetch_add(&r->opened_bytes, bytes, __ATOMIC_RELAXED);
    if (missed)
        __atomic_fetch_add(&r->missed_bytes, bytes, __ATOMIC_RELAXED);
}

/* Counts an open of a file of `size` bytes. missed = 1: there was no copy, or the open had to wait
 * for the copy. */
static void count(struct session *s, int from_copy, uint64_t size, int missed) {
    struct monarch_stats *n = monarch_my_stats(s);
    __atomic_fetch_add(from_copy ? &n->hits : &n->misses, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(from_copy ? &n->bytes_from_tier : &n->bytes_from_source, size,
                       __ATOMIC_RELAXED);
    count_rank(s, size, missed);
}

/* Tells the daemon that a file was opened. This only sets a bit, which the daemon reads and clears
 * later. The daemon is not woken. */
static void tell_opened(struct session *s, uint64_t id) {
    if (__builtin_expect(!__atomic_load_n(&s->control->follow_opens, __ATOMIC_RELAXED), 1) ||
        id >= MONARCH_MAX_FILES)
        return;
    monarch_set_bit(&s->clients->opened, id);
}

void monarch_opened_copy(struct session *s, const struct monarch_opening *o) {
    if (__builtin_expect(monarch_logging, 0))
        monarch_log("open", monarch_pool(monarch_catalog_of(s), o->entry->path), o->copy);
    count(s, 1, o->entry->size, o->waited);
    tell_opened(s, (uint64_t)o->id);
}

/* Counts an open at the source, and adds its duration to a sum. From the mean duration, the daemon
 * learns whether its fills overload the source. */
static void count_wait(struct session *s, uint64_t took_ns) {
    struct monarch_stats *n = monarch_my_stats(s);
    __atomic_fetch_add(&n->source_opens, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&n->source_open_ns, took_ns, __ATOMIC_RELAXED);
}

/* Returns whether the file is small and its source is as fast as the page cache. If so, the
 * library neither claims the file nor tracks its descriptor, because a claim or the tracking would
 * take longer than the read. Instead, the library assumes that the program reads the whole file. */
static int is_left_alone(const struct session *s, const struct monarch_entry *e) {
    return e->size <= MONARCH_UNIT && !s->control->fill_after && monarch_source_is_at_hand();
}

/* To examine an opened file that has no entry, the library calls `fstat` and sends the daemon a
 * message. This takes about a tenth of the time in which a program opens, reads and closes a small
 * file from the page cache. If a scan will find all files, the daemon does not need the messages.
 * So if the sources are as fast as the page cache, and a scan will find all files, this process
 * examines only one in LOOKED of these opens. In the statistics, each of the other files counts as
 * being as large as the last examined file. */
#define LOOKED 16

/* Returns whether to examine this open of a file without an entry. A hash of a counter chooses one
 * in LOOKED opens, at uneven distances. Otherwise, if a program opened images and labels
 * alternately, only files of one kind would be examined. */
static int is_looked_at(void) {
    static __thread uint32_t opens;
    return opens++ * 0x9E3779B9U < UINT32_MAX / LOOKED;
}

/* Counts an open of a file that has no entry. If the open is not to be examined (is_looked_at),
 * does nothing else. If the program will read the file directly (handover.h), starts to track the
 * descriptor. Otherwise reports the file to the daemon. */
static void opened_unmet(struct session *s, int flags, int fd) {
    static uint64_t last_size SELDOM;
    struct stat st;
    int at_hand = monarch_source_is_at_hand();
    if (at_hand && __atomic_load_n(&s->control->scan_meets_all, __ATOMIC_RELAXED) &&
        !is_looked_at()) {
        uint64_t size = __atomic_load_n(&last_size, __ATOMIC_RELAXED);
        count(s, 0, size, 1);
        monarch_count_source(s, size);
        return;
    }
    if (sys_fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return;
    __atomic_store_n(&last_size, (uint64_t)st.st_size, __ATOMIC_RELAXED);
    count(s, 0, (uint64_t)st.st_size, 1);
    if (at_hand || !monarch_is_plain(flags) || !monarch_read_unmet(s, fd, &st)) {
        monarch_count_source(s, (uint64_t)st.st_size);
        monarch_tell_unknown(s, fd, 0);
    }
}

void monarch_opened_source(struct session *s, const struct monarch_opening *o, int flags,
                           uint64_t took_ns, int fd) {
    count_wait(s, took_ns);
    if (__builtin_expect(monarch_logging, 0))
        monarch_log("open", o->entry ? monarch_pool(monarch_catalog_of(s), o->entry->path) : NULL,
                    o->entry ? why_source(s, o->entry) : "source: not scanned yet");
    if (o->entry) {
        uint64_t word = __atomic_load_n(&o->entry->word, __ATOMIC_ACQUIRE);
        count(s, 0, o->entry->size, MONARCH_WORD_STATE(word) != MONARCH_BYPASS);
        tell_opened(s, (uint64_t)o->id);
        int may_come = MONARCH_WORD_STATE(word) != MONARCH_BYPASS && o->entry->size;
        int is_direct = o->claimed && monarch_is_read_direct(s, o->entry, (uint64_t)o->id, word);
        int is_alone = o->is_alone || (!o->claimed && is_left_alone(s, o->entry));
        if (may_come && is_alone)
            monarch_progress(s, (uint64_t)o->id, o->entry->size);
        else if (may_come && monarch_is_plain(flags))
            monarch_track(s, fd, (uint64_t)o->id, is_direct ? TRACK_DIRECT : 0);
        /* Forgets the bytes that were read through earlier descriptors of the file. Otherwise,
         * is_read_at_random (handover.c) would compare a wrong sum with the offset of `fd`. */
        if (is_direct && o->entry->size > MONARCH_UNIT)
            monarch_progress_begin_again((uint64_t)o->id);
        if (o->claimed && !(monarch_tracked(fd) & TRACK_DIRECT))
            monarch_fill_instead(s, o->entry, (uint64_t)o->id);
        if (!monarch_tracked(fd))
            monarch_count_source(s, o->entry->size);
    }
    if (!o->entry)
        opened_unmet(s, flags, fd);
}

void monarch_not_opened(struct session *s, const struct monarch_opening *o) {
    int old_errno = errno;
    if (o->claimed)
        monarch_fill_instead(s, o->entry, (uint64_t)o->id);
    errno = old_errno;
}

/* Returns whether the copy may be used. With `metadata: source` in the configuration, first asks
 * the source whether the file is still the version that was copied. If it is not, records the file
 * as changed, for all processes, and returns 0. */
static int is_as_known(struct session *s, const struct monarch_entry *e, int dir, const char *path,
                       int flags) {
    uint64_t dev = s->control->source[e->source].dev;
    struct stat now;
    if (s->control->metadata_cached)
        return 1;
    if (sys_fstatat(dir, path, &now, flags & O_NOFOLLOW ? AT_SYMLINK_NOFOLLOW : 0) == 0 &&
        monarch_is_as_scanned(s, e, &now))
        return 1;
    monarch_mark_changed(s->clients, dev, e->ino);
    return 0;
}

int monarch_begin_look_up(struct session *s, int dir, const char *path, int flags,
                          struct monarch_aim *a, struct monarch_opening *o) {
    o->entry = NULL;
    o->id = MONARCH_OUTSIDE;
    o->served = o->waited = o->is_new = o->claimed = o->is_alone = 0;
    o->word = o->version = 0;
    /* An open with O_PATH or O_DIRECTORY reads no file. An open with O_DSYNC never gets a copy,
     * because monarch_copy_flags uses this flag for its own purpose. */
    if (!path || flags & (O_PATH | O_DIRECTORY | O_DSYNC))
        return 0;
    if (!monarch_aim(s, dir, path, 1, a)) {
        o->is_new = a->is_new;
        return 0;
    }
    /* monarch_aim has begun to prefetch cache lines, which arrive while monarch_tick runs */
    monarch_tick(s);
    if (a->source >= 0 && s->control->metadata_cached && !(flags & O_NOATIME)) {
        uint64_t word;
        a->likely = monarch_guess(a->catalog, a->hash, &word);
        if (word && MONARCH_WORD_TIER(word) < s->control->tiers) {
            monarch_copy_path(s, word, o->copy);
            o->word = word;
        }
    }
    return 1;
}

void monarch_look_up(struct session *s, int dir, const char *path, int flags,
                     struct monarch_opening *o) {
    struct monarch_aim a;
    if (monarch_begin_look_up(s, dir, path, flags, &a, o))
        monarch_end_look_up(s, &a, dir, path, flags, o);
}

/* Call this for an entry that was found by its file's inode number, after reading its word.
 * Returns whether the entry may describe another file by now. If not, the word belongs to the file
 * that was searched for. version: the entry's version when the entry was found. */
static int is_anothers(const struct monarch_entry *e, uint32_t version) {
    return version & 1 || __atomic_load_n(&e->version, __ATOMIC_ACQUIRE) != version;
}

void monarch_end_look_up(struct session *s, struct monarch_aim *a, int dir, const char *path,
                         int flags, struct monarch_opening *o) {
    int64_t id = monarch_locate_aimed(s, a, dir, path, !(flags & O_NOFOLLOW));
    if (id < 0) {
        o->id = id;
        o->is_new = a->is_new;
        return;
    }
    const struct monarch_entry *e = &monarch_entries(a->catalog)[id];
    if (e->kind != MONARCH_FILE)
        return;
    o->id = id;
    o->entry = e;
    /* Only a file's owner may use O_NOATIME. If the caller does not own the file, its open with
     * O_NOATIME must fail. But the caller owns every copy, so an open of the copy would succeed. */
    if ((flags & O_NOATIME) && e->uid != (uid_t)sys6(SYS_geteuid, 0, 0, 0, 0, 0, 0))
        return;
    uint64_t word = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
    if (MONARCH_WORD_STATE(word) == MONARCH_PRESENT && !monarch_is_off(s) &&
        !monarch_entry_is_changed(s, e) && is_as_known(s, e, dir, path, flags)) {
        /* Usually, monarch_begin_look_up has guessed this copy and has already written its path.
         * Otherwise, the path is written now. If the copy is dropped before the caller opens it,
         * the open fails, because the number of a copy is never reused. The caller then opens the
         * source. */
        if (!o->word || (word ^ o->word) >> 8)
            monarch_copy_path(s, word, o->copy);
        o->word = word;
        o->served = 1;
    } else if (monarch_is_read_direct(s, e, (uint64_t)id, word) &&
               !(o->is_alone = is_left_alone(s, e))) {
        monarch_claim_file(s->clients, (uint64_t)id);
        o->claimed = 1;
    } else if (MONARCH_WORD_STATE(word) == MONARCH_ABSENT ||
               MONARCH_WORD_STATE(word) == MONARCH_WANTED) {
        /* The fill has not begun, but the daemon may have queued it in advance. The request tells
         * the daemon that a program needs the file now. */
        monarch_request_fill(s, e, (uint64_t)id, 0);
    }
    if (a->lead == MONARCH_LEAD_FILES && is_anothers(e, o->version = a->version)) {
        o->entry = NULL;
        o->id = MONARCH_OUTSIDE;
        o->served = 0;
    } else if (a->lead != MONARCH_LEAD_FILES && !o->served) {
        o->version = __atomic_load_n(&e->version, __ATOMIC_ACQUIRE);
    }
}
