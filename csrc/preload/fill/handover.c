#include "preload/fill/handover.h"

#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

#include "preload/descriptors/locked_files.h"
#include "preload/descriptors/track.h"
#include "preload/fill/progress.h"
#include "preload/fill/request.h"
#include "preload/fill/wait.h"
#include "preload/process/attributes.h"
#include "preload/process/momentary.h"
#include "preload/process/proc.h"
#include "preload/process/text.h"
#include "preload/session/segments.h"
#include "preload/session/session.h"
#include "shared/claims.h"
#include "shared/path.h"
#include "shared/sys.h"

/* When a program closes a file, the library hands the file over only if at least 1 / WORTH of the
 * file was read. Otherwise, most of the file's pages are not in the page cache, and the daemon has
 * to read them from the source anyway. */
#define WORTH 2
/* When a program has read 1 / PART of a file, the library checks once whether the reads were
 * sequential or in random order. */
#define PART 8
/* Maximum number of digits in a socket's name, `handovers.<number>`. */
#define DIGITS 2
/* Longest wait [ns] of a call that locks an open file or changes its flags. If the file's
 * descriptor was handed over, such a call waits until the daemon has closed the descriptor that it
 * received. */
#define AWAIT_NS 50000000ULL
/* If the kernel does not keep a source's pages in the page cache, handovers of the source's files
 * are useless. Nevertheless, one in LOOKS of these files is handed over, so that the daemon
 * notices when the kernel keeps the pages again. */
#define LOOKS 128

/* --- files that are filled by a program's own reads ------------------------------------------- */

/* Returns whether the kernel is likely to keep the file's pages in the page cache after a read.
 * Without these pages, the daemon would read the whole file from the source again. The result is
 * always 1 for one file in LOOKS. sources: bit mask of the sources to which the file may belong.
 * id: the number of the file's entry, or the file's inode number. */
static int keeps_pages(const struct session *s, uint32_t sources, uint64_t id) {
    return !(__atomic_load_n(&s->control->pageless_sources, __ATOMIC_RELAXED) & sources) ||
           id % LOOKS == 0;
}

int monarch_may_read_direct(const struct session *s, const struct monarch_entry *e, uint64_t id) {
    return e->size && e->size <= s->control->handed_bytes && id < MONARCH_MAX_FILES &&
           (!s->control->shares || e->flags & MONARCH_OWN) && !monarch_is_fast(s, e) &&
           keeps_pages(s, 1U << e->source, id) &&
           !monarch_has_locks(s->control->source[e->source].dev, e->ino);
}

int monarch_is_read_direct(struct session *s, const struct monarch_entry *e, uint64_t id,
                           uint64_t word) {
    if (!monarch_may_read_direct(s, e, id))
        return 0;
    if (MONARCH_WORD_STATE(word) == MONARCH_FILLING)
        return !monarch_is_under_way(s, word);
    if (MONARCH_WORD_STATE(word) == MONARCH_WANTED)
        return 1;
    return MONARCH_WORD_STATE(word) == MONARCH_ABSENT &&
           !monarch_bit_is_set(s->clients->wanted.word, id);
}

void monarch_fill_instead(struct session *s, const struct monarch_entry *e, uint64_t id) {
    monarch_give_up_claim(s->clients, id);
    monarch_request_fill(s, e, id, 0);
}

/* --- the end of direct reads ------------------------------------------------------------------ */

/* Ends a descriptor's direct reads (handover.h), and asks the daemon to fill the file. Later reads
 * of the descriptor wait for the parts of the copy that they need. */
static void fill_in_parts(struct session *s, const struct monarch_entry *e, int fd,
                          uint64_t tracked) {
    if (monarch_track_change(fd, tracked, tracked & ~TRACK_DIRECT))
        monarch_fill_instead(s, e, monarch_track_entry(tracked));
}

static void await_end(int fd) {
    uint64_t w = monarch_tracked(fd), start = 0;
    struct session *s = w ? monarch_track_session(w) : NULL;
    if (!s || !s->clients)
        return;
    uint64_t id = monarch_track_entry(w), *at = monarch_claim_at(s->clients, id);
    for (unsigned n = 0;; sys_relax(n++)) {
        uint64_t claim = __atomic_load_n(at, __ATOMIC_SEQ_CST), now = monarch_now_ns();
        start = start ? start : now;
        if (!monarch_claim_names(claim, id) || !monarch_is_in_transit(claim, now) ||
            now - start > AWAIT_NS)
            return;
        if (!(claim & MONARCH_CLAIM_RECALLED) &&
            __atomic_compare_exchange_n(at, &claim, claim | MONARCH_CLAIM_RECALLED, 0,
                                        __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
            monarch_ring(s);
    }
}

/* Ends a descriptor's direct reads (handover.h) if less than 1 / WORTH of its file was read. Does
 * not request a fill, because the program may be about to lock the file (monarch_keep_descriptor).
 * While the program waits for its lock, another process may hold the lock and change the file. A
 * fill at that time might copy outdated data. The descriptor's next read requests the fill. */
static void read_in_parts(int fd, uint64_t tracked) {
    uint64_t id = monarch_track_entry(tracked);
    struct session *s = monarch_track_session(tracked);
    const struct monarch_entry *e = s->clients ? monarch_entry_of(s, id) : NULL;
    if (e && monarch_progress_of(id) < e->size / WORTH &&
        monarch_track_change(fd, tracked, tracked & ~TRACK_DIRECT))
        monarch_give_up_claim(s->clients, id);
}

void monarch_keep_descriptor(int fd) {
    uint64_t w = monarch_tracked(fd);
    if (w & TRACK_DIRECT && !(w & TRACK_HANDED))
        read_in_parts(fd, w);
    await_end(fd);
}

/* --- sending ---------------------------------------------------------------------------------- */

/* Writes to `to` the address of the socket that receives handovers of the file `id`. If the
 * socket's path is too long for an address, opens the socket's directory. The address then names
 * the directory by its link in /proc/self/fd. Returns the directory's descriptor, which the caller
 * must close, or -1 if no directory was opened. */
static int address(struct sockaddr_un *to, uint64_t id) {
    static const char name[] = "/handovers.";
    const char *dir = monarch_session_dir();
    int by = -1;
    to->sun_family = AF_UNIX;
    char *at;
    if (strlen(dir) + sizeof name + DIGITS <= sizeof to->sun_path) {
        at = put(put(to->sun_path, dir), name);
    } else {
        by = sys_openat(AT_FDCWD, dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
        at = put(to->sun_path, "/proc/self/fd/");
        at = put(put_number(at, (uint64_t)(by < 0 ? 0 : by), 10, 1), name);
    }
    put_number(at, id % MONARCH_HANDOVER_SOCKETS, 10, 1);
    return by;
}

/* Sends the descriptor `fd` and the message `what` (n bytes) to the daemon. Does not wait, and does
 * not access the source. Returns whether the message was sent. */
static int send_descriptor(int fd, uint64_t id, void *what, size_t n) {
    struct sockaddr_un to;
    struct iovec part = {what, n};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof fd)];
    } control = {.room = {0}};
    monarch_momentary_begin();
    int dir = address(&to, id);
    struct msghdr message = {.msg_name = &to,
                             .msg_namelen = sizeof to,
                             .msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control.room};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    long by = sys6(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, 0, 0, 0), sent = -1;
    if (by >= 0) {
        sent = sys6(SYS_sendmsg, by, (long)&message, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0, 0);
        sys_close((int)by);
    }
    if (dir >= 0)
        sys_close(dir);
    monarch_momentary_end();
    return sent >= 0;
}

/* --- files without an entry ------------------------------------------------------------------- */

#define UNMET 64

/* Counts the bytes that were read of files without an entry in the catalog. Each slot counts for
 * one descriptor. If two descriptors share a slot, the slot counts only for the descriptor that
 * was opened later. */
static struct unmet {
    uint64_t word; /* atomic: the descriptor's word (track.h), without flags */
    uint64_t size, bytes;
} unmet[UNMET] SELDOM;

static struct unmet *unmet_at(int fd) { return &unmet[(unsigned)fd % UNMET]; }

/* Adds `n` to the bytes that were read of a file without an entry. Returns the sum, or 0 if the
 * slot now counts for another descriptor. Stores the file size from the slot in *size. */
static uint64_t add_unmet(int fd, uint64_t tracked, uint64_t n, uint64_t *size) {
    struct unmet *at = unmet_at(fd);
    *size = __atomic_load_n(&at->size, __ATOMIC_RELAXED);
    return __atomic_load_n(&at->word, __ATOMIC_ACQUIRE) == (tracked & ~TRACK_FLAGS)
               ? __atomic_add_fetch(&at->bytes, n, __ATOMIC_RELAXED)
               : 0;
}

/* Returns whether the source on the device `dev` is so fast that a copy would not make reads of
 * small files faster. The daemon finds out which sources are fast by measuring its fills. Until it
 * has measured enough fills, the result is 0 if there are several sources. If there is only one
 * source, the result until then depends on this process's own opens and reads. */
static int is_fast_device(const struct session *s, uint64_t dev) {
    uint32_t fast = __atomic_load_n(&s->control->fast_sources, __ATOMIC_RELAXED), here = 0;
    uint32_t judged = __atomic_load_n(&s->control->judged_sources, __ATOMIC_RELAXED);
    if (s->control->sources == 1 && !judged)
        return monarch_source_is_near();
    for (uint32_t i = 0; fast && i < s->control->sources; i++)
        here |= (uint32_t)(s->control->source[i].dev == dev) << i;
    return (fast & here) != 0;
}

int monarch_read_unmet(struct session *s, int fd, const struct stat *st) {
    struct unmet *at = unmet_at(fd);
    if (st->st_size <= 0 || (uint64_t)st->st_size > s->control->handed_bytes ||
        s->control->shares || (st->st_size <= MONARCH_UNIT && is_fast_device(s, st->st_dev)) ||
        !keeps_pages(s, UINT32_MAX, st->st_ino))
        return 0;
    monarch_track(s, fd, monarch_unmet(st->st_ino), TRACK_DIRECT);
    uint64_t w = monarch_tracked(fd);
    if (!(w & TRACK_DIRECT))
        return 0;
    __atomic_store_n(&at->word, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&at->size, (uint64_t)st->st_size, __ATOMIC_RELAXED);
    __atomic_store_n(&at->bytes, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&at->word, w & ~TRACK_FLAGS, __ATOMIC_RELEASE);
    monarch_claim_file(s->clients, monarch_unmet(st->st_ino));
    return 1;
}

/* Writes the path that the kernel reports for `fd` into the message `what`. Returns 0 if the path
 * is in no source, or is too long for the message. Must not be inlined. Otherwise, its large
 * buffer would be on the stack while the message is sent. */
__attribute__((noinline)) static int find_path(const struct session *s, int fd,
                                               struct monarch_handover *what) {
    char path[MONARCH_PATH_MAX];
    const char *rel;
    size_t n = monarch_name_of(fd, path) ? strlen(path) : 0;
    int source = n ? monarch_prefix(s->control, path, n, &rel) : -1;
    n -= source < 0 ? n : (size_t)(rel - path);
    if (!n || n >= sizeof what->path)
        return 0;
    what->source = (uint32_t)source;
    what->path_len = (uint32_t)n;
    memcpy(what->path, rel, n + 1);
    return 1;
}

/* Hands over the descriptor of a file without an entry. Returns whether the descriptor was sent. */
__attribute__((noinline)) static int is_sent_unmet(struct session *s, int fd, uint64_t tracked,
                                                   int is_read) {
    struct monarch_handover what = {.id = monarch_track_entry(tracked),
                                    .is_read = (uint32_t)is_read};
    struct statx x;
    /* Only the inode number is needed. The kernel has cached this number at the open, so statx does
     * not ask the source. */
    if (tracked & TRACK_FORKED ||
        sys6(SYS_statx, fd, (long)"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, (long)&x, 0) !=
            0 ||
        monarch_unmet(x.stx_ino) != what.id || !find_path(s, fd, &what))
        return 0;
    uint64_t claim = monarch_begin_claim(s->clients, what.id);
    int done = claim && !monarch_has_locks(makedev(x.stx_dev_major, x.stx_dev_minor), x.stx_ino) &&
               send_descriptor(fd, what.id, &what,
                               offsetof(struct monarch_handover, path) + what.path_len + 1);
    if (claim && !done)
        monarch_cancel_claim(s->clients, what.id, claim);
    return done;
}

/* --- descriptors ------------------------------------------------------------------------------ */

int monarch_direct_is_over(int fd, uint64_t tracked) {
    const struct monarch_entry *e =
        monarch_entry_of(monarch_track_session(tracked), monarch_track_entry(tracked));
    uint64_t word = e ? __atomic_load_n(&e->word, __ATOMIC_ACQUIRE) : 0;
    return !(tracked & TRACK_HANDED) && MONARCH_WORD_STATE(word) == MONARCH_PRESENT &&
           monarch_track_change(fd, tracked, tracked & ~TRACK_DIRECT);
}

static int send_entry(int fd, uint64_t id, int is_read) {
    struct {
        uint64_t id;
        uint32_t is_read;
    } what = {id, (uint32_t)is_read};
    return send_descriptor(fd, id, &what, offsetof(struct monarch_handover, source));
}

/* Sends the descriptor of a file that has an entry. Returns 1 if this descriptor or another
 * descriptor of the file was sent. If the result is 0, the daemon itself must open the file. That
 * is the case if the file may have locks, or if other processes share the open file. The library
 * may have missed a close, so that `fd` now refers to another file. Therefore the daemon checks
 * which file it has received.
 *
 * This thread first marks the descriptor (TRACK_HANDED) and the file's claim, and then checks for
 * locks. A thread that takes a lock works in the opposite order: it first records the lock, and
 * then checks the claim. So at least one of the two threads notices the other. */
static int is_sent(struct session *s, const struct monarch_entry *e, uint64_t id, int fd,
                   uint64_t tracked, int is_read) {
    if (tracked & TRACK_FORKED)
        return 0;
    uint64_t claim = monarch_begin_claim(s->clients, id);
    if (!claim)
        return monarch_claim_names(
            __atomic_load_n(monarch_claim_at(s->clients, id), __ATOMIC_RELAXED), id);
    int done = !monarch_has_locks(s->control->source[e->source].dev, e->ino) &&
               send_entry(fd, id, is_read);
    if (!done)
        monarch_cancel_claim(s->clients, id, claim);
    return done;
}

void monarch_hand_over(int fd, uint64_t tracked, int is_read) {
    struct session *s = monarch_track_session(tracked);
    uint64_t id = monarch_track_entry(tracked);
    const struct monarch_entry *e = s && s->clients ? monarch_entry_of(s, id) : NULL;
    if (!s || !s->clients || (!e && !monarch_is_unmet(id)) ||
        tracked & (TRACK_HANDED | TRACK_PINNED) ||
        !monarch_track_change(fd, tracked, tracked | TRACK_HANDED))
        return;
    if (!e) {
        /* If the sources are as fast as the page cache, the descriptor is not sent. The daemon
         * then reads the file at the source. The library has tracked such a descriptor only to
         * measure how long reads take. */
        int at_hand = monarch_source_is_at_hand();
        if (at_hand)
            monarch_give_up_claim(s->clients, id);
        if (monarch_is_serving(s) && (at_hand || !is_sent_unmet(s, fd, tracked, is_read)))
            monarch_tell_unknown(s, fd, 0);
        return;
    }
    monarch_progress_begin_again(id);
    if (monarch_is_serving(s) && !is_sent(s, e, id, fd, tracked, is_read))
        monarch_request_fill(s, e, id, e->size);
}

static uint64_t offset_of(int fd) {
    monarch_momentary_begin();
    uint64_t at = monarch_offset_of(fd);
    monarch_momentary_end();
    return at;
}

/* Returns whether the program reads the file in random order. If all reads were sequential from
 * the beginning, this read ended at an offset equal to the number of bytes read so far. Only the
 * read that reaches 1 / PART of the file is checked; for all other reads, the result is 0. The
 * result is also 0 for a small file, because a program usually reads such a file completely.
 * bytes: number of bytes read so far, including this read. n: number of bytes of this read. end:
 * the offset where this read ended, or -1 for a read at the descriptor's own offset. */
static int is_read_at_random(int fd, const struct monarch_entry *e, uint64_t bytes, uint64_t n,
                             int64_t end) {
    uint64_t part = e->size / PART;
    if (e->size <= MONARCH_UNIT || bytes < part || bytes - n >= part)
        return 0;
    return (end < 0 ? offset_of(fd) : (uint64_t)end) != bytes;
}

/* Counts a read of `n` bytes from a descriptor with TRACK_DIRECT. If the whole file was read,
 * hands the descriptor over. If the file is read in random order, requests a fill instead. end: as
 * for is_read_at_random. */
static void note_direct(int fd, uint64_t tracked, uint64_t n, int64_t end) {
    struct session *s = monarch_track_session(tracked);
    uint64_t id = monarch_track_entry(tracked), size, bytes;
    if (monarch_is_unmet(id)) {
        bytes = add_unmet(fd, tracked, n, &size);
        if (!(tracked & TRACK_HANDED) && bytes && bytes >= size)
            monarch_hand_over(fd, tracked, 1);
        else if (s && s->clients && !(tracked & TRACK_HANDED) && size > MONARCH_UNIT)
            /* renews the claim, which could otherwise expire before the program has read the whole
             * file */
            monarch_claim_file(s->clients, id);
        return;
    }
    const struct monarch_entry *e = monarch_entry_of(s, id);
    bytes = monarch_progress(s, id, n);
    if (tracked & TRACK_HANDED) /* drops TRACK_DIRECT, so that the copy can serve later reads */
        monarch_track_change(fd, tracked, tracked & ~(TRACK_DIRECT | TRACK_HANDED));
    else if (e && bytes >= e->size)
        monarch_hand_over(fd, tracked, 1);
    else if (e && is_read_at_random(fd, e, bytes, n, end))
        fill_in_parts(s, e, fd, tracked);
    else if (e && e->size > MONARCH_UNIT)
        monarch_claim_file(s->clients, id);
}

ssize_t monarch_note_read(int fd, ssize_t n, off_t at) {
    uint64_t w = monarch_tracked(fd);
    if (__builtin_expect(w != 0, 0) && n > 0) {
        struct session *s = monarch_track_session(w);
        monarch_count_source(s, (uint64_t)n);
        if (w & TRACK_DIRECT)
            note_direct(fd, w, (uint64_t)n, at < 0 ? -1 : at + n);
        else
            monarch_progress(s, monarch_track_entry(w), (uint64_t)n);
    }
    return n;
}

/* Returns how many bytes of the file were read so far, or 0 if that is unknown. */
static uint64_t read_by_now(int fd, uint64_t tracked, uint64_t *size) {
    uint64_t id = monarch_track_entry(tracked);
    uint64_t bytes =
        monarch_is_unmet(id) ? add_unmet(fd, tracked, 0, size) : monarch_progress_of(id);
    if (tracked & TRACK_FORKED || (bytes && !(tracked & TRACK_SHARED)))
        return bytes;
    /* libc may have read through a duplicate of the descriptor, as np.load does. The library does
     * not see such reads. But both descriptors share one offset, which shows how much was read. */
    uint64_t at = offset_of(fd);
    return at > bytes ? at : bytes;
}

void monarch_close_direct(int fd, uint64_t tracked) {
    struct session *s = monarch_track_session(tracked);
    uint64_t id = monarch_track_entry(tracked), size = 0;
    const struct monarch_entry *e = s && s->clients ? monarch_entry_of(s, id) : NULL;
    if (!s || !s->clients || (!e && !monarch_is_unmet(id)) || tracked & TRACK_HANDED)
        return;
    uint64_t bytes = read_by_now(fd, tracked, &size);
    size = e ? e->size : size;
    if (bytes && bytes >= size / WORTH)
        monarch_hand_over(fd, tracked, bytes >= size);
    else if (!e)
        monarch_tell_unknown(s, fd, bytes > 0);
    else if (!bytes) /* the program has read the file only by calls that the library does not see,
                      * or not at all */
        monarch_request_fill(s, e, id, e->size);
    monarch_give_up_claim(s->clients, id);
}
