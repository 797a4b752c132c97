#include "preload/calls/read.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "preload/descriptors/locked_files.h"
#include "preload/descriptors/track.h"
#include "preload/fill/handover.h"
#include "preload/fill/progress.h"
#include "preload/fill/request.h"
#include "preload/fill/wait.h"
#include "preload/process/calls.h"
#include "preload/process/log.h"
#include "preload/process/momentary.h"
#include "preload/promotion/promote.h"
#include "preload/session/copies.h"
#include "preload/session/roots.h"
#include "shared/path.h"
#include "shared/sys.h"

/* Maximum number of bytes that the kernel moves in one call. */
#define MOST 0x7ffff000UL

/* --- which file ------------------------------------------------------------------------------- */

/* Returns whether the copy may be read. After a chroot or in another mount namespace, the path of
 * the copy may lead to another file. So monarch_sees_source is checked too. */
static int is_readable(int fd, const struct monarch_wanted *w) {
    struct session *s = w->session;
    return MONARCH_WORD_STATE(__atomic_load_n(&w->entry->word, __ATOMIC_ACQUIRE)) !=
               MONARCH_BYPASS &&
           !monarch_is_changed(s->clients, s->control->source[w->entry->source].dev, w->ino) &&
           monarch_sees_source(s, w->entry->source) && monarch_is_callers(fd, w);
}

int monarch_find_file(int fd, uint64_t tracked, struct monarch_wanted *w) {
    struct session *s = session_for_reading();
    w->id = monarch_track_entry(tracked);
    w->tracked = tracked;
    if (monarch_is_unmet(w->id))
        return 0;
    if (s && s == monarch_track_session(tracked)) {
        const struct monarch_catalog *c = monarch_catalog_of(s);
        w->session = s;
        w->entry = &monarch_entries(c)[w->id];
        w->since_ns = w->limit_ns = 0;
        w->is_instead = 0;
        w->version = __atomic_load_n(&w->entry->version, __ATOMIC_ACQUIRE);
        w->ino = w->entry->ino;
        monarch_tick(s);
        if (!(w->version & 1) && is_readable(fd, w))
            return 1;
        /* In the state BYPASS, the file gets no copy. The descriptor is removed from the table
         * below. So the library does not see later reads through it, and counts the whole file as
         * read now. */
        if (!(tracked & TRACK_OFFSET) && MONARCH_WORD_STATE(__atomic_load_n(
                                             &w->entry->word, __ATOMIC_ACQUIRE)) == MONARCH_BYPASS)
            monarch_count_source(s, w->entry->size);
    } else if (s && !monarch_is_off(s) && !s->control->off) {
        ; /* `tracked` is from an earlier session, which had other entry numbers */
    } else {
        /* Monarch is switched off for a while, or the session's daemon has ended and no new daemon
         * has started yet */
        return 0;
    }
    /* A descriptor's word with TRACK_OFFSET stays in the table. Another thread may have moved the
     * offset to claim bytes, and needs the word if it has to move the offset back. */
    if (!(tracked & TRACK_OFFSET))
        monarch_untrack_seen(fd, tracked);
    return 0;
}

/* --- from the copy ---------------------------------------------------------------------------- */

/* Reads `n` bytes at the offset `at` from the copy that `word` names. Returns the number of bytes
 * read. Opens and closes the copy, so that no descriptor stays open during a wait or between
 * calls. */
static uint64_t read_from(const struct session *s, uint64_t word, char *buf, uint64_t n,
                          uint64_t at) {
    char path[MONARCH_COPY_PATH];
    uint64_t done = 0;
    monarch_copy_path(s, word, path);
    monarch_momentary_begin();
    int fd = sys_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    for (long r;
         fd >= 0 && done < n && (r = sys_pread(fd, buf + done, n - done, (long)(at + done))) > 0;)
        done += (uint64_t)r;
    if (fd >= 0)
        sys_close(fd);
    monarch_momentary_end();
    return done;
}

int monarch_is_coming(const struct monarch_wanted *w, uint64_t word) {
    return MONARCH_WORD_STATE(word) != MONARCH_ABSENT ||
           monarch_request_fill(w->session, w->entry, w->id, w->n);
}

/* Reads the range [w->at, w->at + w->n), which lies within the file, from the copy. May wait for
 * bytes that are not in the copy yet. Stops at the first byte that the copy cannot provide. Returns
 * the number of bytes read. *w is then the rest of the range, which the caller must read from the
 * source. */
static uint64_t read_copy(struct monarch_wanted *w, char *buf) {
    uint64_t begin = w->at, filling = 0;
    struct monarch_stats *stats = monarch_my_stats(w->session);
    while (w->n) {
        uint64_t word = monarch_word_of(w);
        unsigned state = MONARCH_WORD_STATE(word);
        int64_t ready = state == MONARCH_PRESENT ? (int64_t)w->n : 0;
        if (state == MONARCH_FILLING)
            ready = monarch_ready(w, word);
        /* The entry may describe another file by now, and `word` may name that file's copy. One
         * call must not return bytes of two files. */
        if (state == MONARCH_BYPASS || ready < 0 || monarch_is_replaced(w) ||
            !monarch_is_coming(w, word) || (!ready && monarch_is_fast(w->session, w->entry)))
            break;
        if (ready) {
            uint64_t got = read_from(w->session, word, buf, (uint64_t)ready, w->at);
            filling += state == MONARCH_FILLING ? got : 0;
            if (w->since_ns && w->entry->size <= MONARCH_UNIT)
                /* The read has waited while the daemon read the file at the source. So the duration
                 * of the wait shows how fast the source is. */
                monarch_note_source_read(monarch_now_ns() - w->since_ns);
            w->since_ns = 0;
            buf += got;
            w->at += got;
            w->n -= got;
            if (got < (uint64_t)ready)
                break;
        } else if (!monarch_demand_and_wait(w)) {
            monarch_log("read", monarch_pool(monarch_catalog_of(w->session), w->entry->path),
                        "source: the copy was not ready in time");
            __atomic_fetch_add(&stats->fallbacks, 1, __ATOMIC_RELAXED);
            break;
        }
    }
    if (filling)
        __atomic_fetch_add(&stats->bytes_while_filling, filling, __ATOMIC_RELAXED);
    monarch_progress(w->session, w->id, w->at - begin);
    return w->at - begin;
}

/* Result of a read during which another thread has closed the descriptor, or has made it refer to
 * another file. */
#define OTHER_FILE (-2)

__attribute__((noinline)) int monarch_open_by_name(const struct monarch_wanted *w) {
    char path[MONARCH_PATH_MAX];
    if (!monarch_source_path(w->session, monarch_catalog_of(w->session), w->entry, path))
        return -1;
    int fd = sys_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || monarch_is_callers(fd, w))
        return fd;
    monarch_close_unseen(fd, -1);
    return -1;
}

static ssize_t read_by_name(const struct monarch_wanted *w, void *buf, size_t n, off_t at) {
    monarch_momentary_begin();
    int fd = monarch_open_by_name(w);
    /* The read is a raw system call, because it must not be a cancellation point: a thread that is
     * cancelled here would leave the descriptor open. */
    ssize_t r = fd >= 0 ? sys_pread(fd, buf, n, at) : 0;
    if (fd >= 0)
        monarch_close_unseen(fd, -1);
    monarch_momentary_end();
    if (fd < 0)
        return OTHER_FILE;
    if (r > 0)
        monarch_count_source(w->session, (uint64_t)r);
    return monarch_result(r);
}

/* Reads from the source the bytes that the copy did not provide. After the read, checks whether
 * `fd` referred to the caller's open file throughout the read. If not, the bytes may come from
 * another file, so they are discarded. For example, another thread may have made `fd` refer to the
 * copy (promote.h).
 *
 * The range is then read a second time: from the copy if the copy is complete by now, otherwise
 * from the source's file, which is opened by its path. Returns OTHER_FILE if that open fails. */
static ssize_t read_rest(int fd, const struct monarch_wanted *w, void *buf, size_t n, off_t at) {
    int old_errno = errno;
    uint64_t began_ns = monarch_now_ns();
    ssize_t r = REAL(pread)(fd, buf, n, at);
    monarch_note_source_read(monarch_now_ns() - began_ns);
    /* To compare only the files is not enough: during the read, `fd` may have referred to another
     * file, and may now refer to a later open of the caller's file. So the descriptor's word
     * (track.h) is compared too: no two opens have the same word. */
    if (!((monarch_tracked(fd) ^ w->tracked) & ~TRACK_FLAGS) && monarch_is_callers(fd, w))
        return monarch_note_read(fd, r, at);
    errno = old_errno;
    uint64_t word = monarch_word_of(w), got = 0;
    if (MONARCH_WORD_STATE(word) == MONARCH_PRESENT && !monarch_is_replaced(w))
        got = read_from(w->session, word, buf, w->n, w->at);
    return got ? (ssize_t)got : read_by_name(w, buf, n, at);
}

/* --- reads at an explicit offset -------------------------------------------------------------- */

/* Returns whether n exceeds the size of the address space. The kernel refuses such a read of any
 * file. */
static int is_absurd(size_t n) { return n >> 46 != 0; }

/* Reads n bytes at the offset `at`: from the copy up to the first byte that the copy lacks, and
 * from there on from the source. joined: 1 if the caller puts the results of several calls
 * together. All bytes must then come from one file, and the result can be OTHER_FILE. */
static ssize_t read_at(int fd, struct monarch_wanted *w, void *buf, size_t n, off_t at,
                       int joined) {
    uint64_t size = w->entry->size;
    w->at = (uint64_t)at;
    w->n = 0;
    if (at < 0 || w->at >= size || !n || is_absurd(n))
        return joined ? read_rest(fd, w, buf, n, at) : REAL(pread)(fd, buf, n, at);
    n = n < MOST ? n : MOST;
    w->n = n < size - w->at ? n : size - w->at;
    size_t wanted = w->n, done = read_copy(w, buf);
    if (done == wanted)
        return (ssize_t)done;
    int old_errno = errno;
    ssize_t r = read_rest(fd, w, (char *)buf + done, n - done, at + (off_t)done);
    if (r == OTHER_FILE && !done && !joined)
        return REAL(pread)(fd, buf, n, at);
    if (r >= 0 || !done)
        return r < 0 ? r : r + (ssize_t)done;
    errno = old_errno; /* the result is the number of bytes read before the error */
    return (ssize_t)done;
}

/* Returns whether the copy may serve a call that requests n bytes. If so, fills in *w for the file.
 * flag: TRACK_OFFSET if the call uses the descriptor's own offset, otherwise 0. */
__attribute__((noinline)) static int served(int fd, uint64_t tracked, uint64_t flag, size_t n,
                                            struct monarch_wanted *w) {
    if (!tracked)
        return 0;
    if (flag && !(tracked & flag))
        monarch_track_flag(fd, flag);
    tracked |= flag;
    if (tracked & TRACK_DIRECT && !monarch_direct_is_over(fd, tracked))
        return 0;
    tracked &= ~TRACK_DIRECT;
    if (!monarch_find_file(fd, tracked, w))
        return 0;
    /* A promotion makes the descriptor refer to the copy. But this read opens the copy by its path,
     * because another thread may close the descriptor at any time. */
    if (monarch_promote(fd, monarch_tracked(fd), w))
        monarch_progress_unseen(w->session, w->id, n);
    return 1;
}

/* Call this after a read that went to the kernel. Counts its n bytes, and returns n. With
 * TRACK_DIRECT, the bytes came from the source, so the duration of the read is recorded too. */
static ssize_t given(int fd, ssize_t n, off_t at, uint64_t since_ns) {
    if (n > 0 && monarch_tracked(fd) & TRACK_DIRECT)
        monarch_note_source_read(monarch_now_ns() - since_ns);
    return monarch_note_read(fd, n, at);
}

/* This is a separate function, so that a read of an untracked descriptor needs no stack space. */
__attribute__((noinline)) static ssize_t pread_tracked(int fd, void *buf, size_t n, off_t at) {
    struct monarch_wanted w;
    if (served(fd, monarch_tracked(fd), 0, n, &w))
        return read_at(fd, &w, buf, n, at, 0);
    uint64_t since_ns = monarch_now_ns();
    return given(fd, REAL(pread)(fd, buf, n, at), at, since_ns);
}

PUBLIC ssize_t pread(int fd, void *buf, size_t n, off_t at) {
    pread_call real = REAL_IF_FOUND(pread);
    if (__builtin_expect(monarch_tracked(fd) != 0, 0) || !real)
        return pread_tracked(fd, buf, n, at);
    return real(fd, buf, n, at);
}

/* --- reads at the descriptor's offset --------------------------------------------------------- */

/* Gives back the last n claimed bytes, which were not read: moves the offset back by n. If the
 * descriptor was closed after the claim, does nothing. */
static void give_back_offset(int fd, uint64_t tracked, long n) {
    if (n)
        monarch_track_seek(fd, tracked, -n);
}

/* Claims the next n bytes of the file, or all remaining bytes if there are fewer. The claimed range
 * is [w->at, w->at + w->n). Moves the offset past this range, so that other threads and processes
 * that read at this offset get later bytes. Returns 0 if nothing was claimed: the offset is at the
 * end of the file, or the descriptor may refer to another file by now. tracked: the descriptor's
 * word (track.h). */
static int claim_offset(int fd, uint64_t tracked, struct monarch_wanted *w, size_t n) {
    /* The kernel moves the offset atomically, also for other processes that share the open file. If
     * the offset would become too large, the seek fails. */
    long end = monarch_track_seek(fd, tracked, (long)n);
    w->n = 0;
    if (end < 0)
        return 0;
    w->at = (uint64_t)end - n;
    uint64_t left = w->at < w->entry->size ? w->entry->size - w->at : 0;
    w->n = n < left ? n : left;
    give_back_offset(fd, tracked, (long)(n - w->n));
    return w->n > 0;
}

static ssize_t read_next(int fd, uint64_t tracked, struct monarch_wanted *w, void *buf, size_t n) {
    if (!n || is_absurd(n) || !claim_offset(fd, tracked, w, n < MOST ? n : MOST))
        return REAL(read)(fd, buf, n);
    size_t wanted = w->n;
    off_t at = (off_t)w->at;
    size_t done = read_copy(w, buf);
    if (done == wanted)
        return (ssize_t)done;
    int old_errno = errno;
    ssize_t r = read_rest(fd, w, (char *)buf + done, wanted - done, at + (off_t)done);
    if (r < 0 && done)
        errno = old_errno;
    /* The descriptor may refer to another file, whose offset must not be moved. */
    if (r == OTHER_FILE)
        return done ? (ssize_t)done : REAL(read)(fd, buf, n);
    size_t got = done + (r > 0 ? (size_t)r : 0);
    give_back_offset(fd, tracked, (long)(wanted - got));
    return r < 0 && !done ? r : (ssize_t)got;
}

__attribute__((noinline)) static ssize_t read_tracked(int fd, void *buf, size_t n) {
    uint64_t tracked = monarch_tracked(fd);
    struct monarch_wanted w;
    if (served(fd, tracked, TRACK_OFFSET, n, &w))
        return read_next(fd, tracked, &w, buf, n);
    uint64_t since_ns = monarch_now_ns();
    return given(fd, REAL(read)(fd, buf, n), -1, since_ns);
}

PUBLIC ssize_t read(int fd, void *buf, size_t n) {
    read_call real = REAL_IF_FOUND(read);
    if (__builtin_expect(monarch_tracked(fd) != 0, 0) || !real)
        return read_tracked(fd, buf, n);
    return real(fd, buf, n);
}

/* --- reads into several parts ----------------------------------------------------------------- */

static int are_usable(const struct iovec *parts, int count, size_t *total) {
    *total = 0;
    MAYBE_NULL(parts);
    if (!parts || count <= 0 || count > IOV_MAX)
        return 0;
    for (int i = 0; i < count; i++) {
        if (parts[i].iov_len > MOST - *total)
            return 0;
        *total += parts[i].iov_len;
    }
    return *total > 0;
}

/* Reads into the parts, one after the other, at most `most` bytes in all. Stops after a part that
 * is not filled completely, which happens at the end of the file or at an error. Returns the number
 * of bytes read, or OTHER_FILE if nothing was read because the descriptor refers to another file
 * now. */
static ssize_t fill_parts(int fd, struct monarch_wanted *w, const struct iovec *parts, int count,
                          size_t most, off_t at) {
    ssize_t done = 0;
    int old_errno = errno;
    for (int i = 0; i < count && (size_t)done < most; i++) {
        size_t left = most - (size_t)done, n = parts[i].iov_len < left ? parts[i].iov_len : left;
        if (!n)
            continue;
        ssize_t r = read_at(fd, w, parts[i].iov_base, n, at + (off_t)done, 1);
        if (r < 0 && !done)
            return r;
        if (r < 0)
            errno = old_errno;
        done += r > 0 ? r : 0;
        if (r < (ssize_t)n)
            break;
    }
    return done;
}

PUBLIC ssize_t readv(int fd, const struct iovec *parts, int count) {
    uint64_t tracked = monarch_tracked(fd);
    struct monarch_wanted w;
    size_t n;
    if (__builtin_expect(tracked == 0, 1) || !are_usable(parts, count, &n) ||
        !served(fd, tracked, TRACK_OFFSET, n, &w) || !claim_offset(fd, tracked, &w, n))
        return monarch_note_read(fd, REAL(readv)(fd, parts, count), -1);
    long wanted = (long)w.n; /* bytes that are appended meanwhile are left to the next call */
    ssize_t r = fill_parts(fd, &w, parts, count, w.n, (off_t)w.at);
    if (r == OTHER_FILE)
        return REAL(readv)(fd, parts, count);
    give_back_offset(fd, tracked, wanted - (r > 0 ? r : 0));
    return r;
}

PUBLIC ssize_t preadv(int fd, const struct iovec *parts, int count, off_t at) {
    uint64_t tracked = monarch_tracked(fd);
    struct monarch_wanted w;
    size_t n;
    if (__builtin_expect(tracked == 0, 1) || !are_usable(parts, count, &n) || at < 0 ||
        !served(fd, tracked, 0, n, &w))
        return monarch_note_read(fd, REAL(preadv)(fd, parts, count, at), at);
    ssize_t r = fill_parts(fd, &w, parts, count, n, at);
    return r == OTHER_FILE ? REAL(preadv)(fd, parts, count, at) : r;
}

static ssize_t real_preadv2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    if (REAL(preadv2)) /* since glibc 2.26 */
        return REAL(preadv2)(fd, parts, count, at, flags);
    return monarch_result(sys6(SYS_preadv2, fd, (long)parts, count, at, 0, flags));
}

PUBLIC ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    if (__builtin_expect(monarch_tracked(fd) == 0, 1) || flags)
        return real_preadv2(fd, parts, count, at, flags);
    return at == -1 ? readv(fd, parts, count) : preadv(fd, parts, count, at);
}

/* --- fortified functions: libc aborts a program that reads more than its buffer holds --------- */

ssize_t __read_chk(int fd, void *buf, size_t n, size_t room);
ssize_t __pread_chk(int fd, void *buf, size_t n, off_t at, size_t room);

PUBLIC ssize_t __read_chk(int fd, void *buf, size_t n, size_t room) {
    return n > room ? REAL(__read_chk)(fd, buf, n, room) : read(fd, buf, n);
}

PUBLIC ssize_t __pread_chk(int fd, void *buf, size_t n, off_t at, size_t room) {
    return n > room ? REAL(__pread_chk)(fd, buf, n, at, room) : pread(fd, buf, n, at);
}

TWIN(__read, read)
TWIN(__pread64, pread)
TWIN(pread64, pread)
TWIN(preadv64, preadv)
TWIN(preadv64v2, preadv2)
TWIN(__pread64_chk, __pread_chk)
