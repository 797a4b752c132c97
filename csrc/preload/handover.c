#define _GNU_SOURCE
#include "handover.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "demand.h"
#include "momentary.h"
#include "progress.h"
#include "promote.h"
#include "segments.h"
#include "serve.h"
#include "sys.h"
#include "text.h"
#include "track.h"

/* A file that is closed when this part of it was read is worth its copy; of one of which less was
 * read, the source would have to give more than the program asked for. */
#define WORTH 2
/* A call that changes what hangs on an open file waits no longer [ns]. */
#define AWAIT_NS 50000000ULL

static const struct monarch_entry *entry_of(struct session *s, uint64_t id) {
    const struct monarch_catalog *c = monarch_catalog_of(s);
    return c && id < c->capacity ? &monarch_entries(c)[id] : NULL;
}

int monarch_is_read_direct(const struct session *s, const struct monarch_entry *e, uint64_t id) {
    return e->size && e->size <= s->control->handed_bytes && id < MONARCH_MAX_FILES &&
           !monarch_is_fast(s, e);
}

/* --- claims -------------------------------------------------------------------------------------
 */

/* One whose descriptor is on its way keeps its place: somebody may wait for its end. */
static int is_on_its_way(uint64_t claim, uint64_t now_ns) {
    return claim & MONARCH_CLAIM_HANDED && monarch_claim_holds(claim, now_ns);
}

void monarch_claim_file(struct session *s, uint64_t id) {
    uint64_t *at = monarch_claim_at(s->clients, id), now = sys_now_ns();
    uint64_t seen = __atomic_load_n(at, __ATOMIC_RELAXED);
    if (!is_on_its_way(seen, now))
        __atomic_compare_exchange_n(at, &seen, monarch_claim_of(id, 0, now), 0, __ATOMIC_SEQ_CST,
                                    __ATOMIC_RELAXED);
}

/* The claim of a descriptor that is to be sent; 0: another one of this file is on its way, or has
 * the place. */
static uint64_t begin_claim(struct session *s, uint64_t id) {
    uint64_t *at = monarch_claim_at(s->clients, id), now = sys_now_ns();
    uint64_t seen = __atomic_load_n(at, __ATOMIC_SEQ_CST);
    uint64_t claim = monarch_claim_of(id, MONARCH_CLAIM_HANDED, now);
    return !is_on_its_way(seen, now) && __atomic_compare_exchange_n(
                                            at, &seen, claim, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
               ? claim
               : 0;
}

static void end_claim(struct session *s, uint64_t id, uint64_t claim) {
    __atomic_compare_exchange_n(monarch_claim_at(s->clients, id), &claim, 0, 0, __ATOMIC_SEQ_CST,
                                __ATOMIC_RELAXED);
}

void monarch_await_handover(int fd) {
    uint64_t w = monarch_tracked(fd), start = 0;
    struct session *s = w ? monarch_track_session(w) : NULL;
    if (!s || !s->clients)
        return;
    uint64_t id = monarch_track_entry(w), *at = monarch_claim_at(s->clients, id);
    for (unsigned n = 0;; sys_relax(n++)) {
        uint64_t claim = __atomic_load_n(at, __ATOMIC_SEQ_CST), now = sys_now_ns();
        start = start ? start : now;
        if (!monarch_claim_names(claim, id) || !is_on_its_way(claim, now) || now - start > AWAIT_NS)
            return;
    }
}

/* --- sending ------------------------------------------------------------------------------------
 */

/* The socket's address. A name that is too long for one is reached by a descriptor of its
 * directory, which is returned; else -1. */
static int address(struct sockaddr_un *to) {
    static const char name[] = "/handovers";
    const char *dir = monarch_session_dir();
    int by = -1;
    to->sun_family = AF_UNIX;
    if (strlen(dir) + sizeof name <= sizeof to->sun_path) {
        put(put(to->sun_path, dir), name);
    } else {
        by = sys_openat(AT_FDCWD, dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
        put(put_number(put(to->sun_path, "/proc/self/fd/"), (uint64_t)(by < 0 ? 0 : by), 10, 1),
            name);
    }
    return by;
}

/* Whether it was sent. No server of the source hears of it, and nothing waits. */
static int send_descriptor(int fd, uint64_t id) {
    struct sockaddr_un to;
    struct monarch_handover what = {.id = id};
    struct iovec part = {&what, sizeof what};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof fd)];
    } control = {.room = {0}};
    monarch_momentary_begin();
    int dir = address(&to);
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

/* --- descriptors --------------------------------------------------------------------------------
 */

int monarch_direct_is_over(int fd, uint64_t tracked) {
    const struct monarch_entry *e =
        entry_of(monarch_track_session(tracked), monarch_track_entry(tracked));
    uint64_t word = e ? __atomic_load_n(&e->word, __ATOMIC_ACQUIRE) : 0;
    return !(tracked & TRACK_HANDED) && MONARCH_WORD_STATE(word) == MONARCH_PRESENT &&
           monarch_track_change(fd, tracked, tracked & ~TRACK_DIRECT);
}

/* The number may be another file's by now, after a close that nobody has seen. Where locks may hang
 * on the open file, or other processes share it, the daemon opens the file itself. The mark and the
 * claim come before the look at the locks: who takes one marks the file first and looks for the
 * claim then. */
static int is_sent(struct session *s, const struct monarch_entry *e, uint64_t id, int fd,
                   uint64_t tracked) {
    if (tracked & TRACK_FORKED)
        return 0;
    uint64_t claim = begin_claim(s, id);
    if (!claim)
        return monarch_claim_names(
            __atomic_load_n(monarch_claim_at(s->clients, id), __ATOMIC_RELAXED), id);
    int done = !monarch_has_locks(s->control->source[e->source].dev, e->ino) &&
               monarch_is_still(fd, s, e) && send_descriptor(fd, id);
    if (!done)
        end_claim(s, id, claim);
    return done;
}

void monarch_hand_over(int fd, uint64_t tracked) {
    struct session *s = monarch_track_session(tracked);
    uint64_t id = monarch_track_entry(tracked);
    const struct monarch_entry *e = s && s->clients ? entry_of(s, id) : NULL;
    if (!e || tracked & (TRACK_HANDED | TRACK_HELD) ||
        !monarch_track_change(fd, tracked, tracked | TRACK_HANDED))
        return;
    monarch_progress_begin_again(id);
    if (monarch_is_serving(s) && !is_sent(s, e, id, fd, tracked))
        monarch_want(s, e, id, e->size);
}

void monarch_read_direct(int fd, uint64_t tracked, uint64_t bytes) {
    const struct monarch_entry *e =
        entry_of(monarch_track_session(tracked), monarch_track_entry(tracked));
    if (tracked & TRACK_HANDED) /* it is read once more: from the copy, as soon as that is there */
        monarch_track_change(fd, tracked, tracked & ~(TRACK_DIRECT | TRACK_HANDED));
    else if (e && bytes >= e->size)
        monarch_hand_over(fd, tracked);
}

static uint64_t offset_of(int fd) {
    long at = sys_lseek(fd, 0, SEEK_CUR);
    return at > 0 ? (uint64_t)at : 0;
}

void monarch_close_direct(int fd, uint64_t tracked) {
    struct session *s = monarch_track_session(tracked);
    uint64_t id = monarch_track_entry(tracked);
    const struct monarch_entry *e = s && s->clients ? entry_of(s, id) : NULL;
    if (!e || tracked & TRACK_HANDED)
        return;
    uint64_t bytes = monarch_progress_of(id);
    /* Who shares it may be reading: lseek would wait for that. */
    if (!bytes && !(tracked & TRACK_SHARED))
        bytes = offset_of(fd);
    if (bytes && bytes >= e->size / WORTH)
        monarch_hand_over(fd, tracked);
    else if (!bytes) /* by calls that nobody sees, or not at all */
        monarch_want(s, e, id, e->size);
    uint64_t claim = __atomic_load_n(monarch_claim_at(s->clients, id), __ATOMIC_RELAXED);
    if (monarch_claim_names(claim, id) && !(claim & MONARCH_CLAIM_HANDED))
        end_claim(s, id, claim);
}
