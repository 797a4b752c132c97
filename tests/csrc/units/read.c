/* Simulates what another thread does while a call is in the kernel, and what the kernel returns. */
#include "preload/fill/handover.h"
#include "preload/fill/progress.h"
#include "preload/fill/wait.h"
#include "within.h"

/* Waits for units are simulated. The first `fills` waits succeed: each of them marks the awaited
 * unit as filled. All later waits fail. */
static struct {
    struct monarch_fill *fill;
    uint32_t *version;
    int fills, n, notes, replaces;
    uint64_t progress, noted_ns;
} waits;
static int wait_for_unit(struct monarch_wanted *w) {
    if (waits.n++ >= waits.fills)
        return 0;
    uint64_t unit = w->at / waits.fill->unit_bytes;
    waits.fill->done[unit / 64] |= 1ULL << unit % 64;
    w->since_ns = w->since_ns ? w->since_ns : monarch_now_ns() - 5000000;
    *waits.version += waits.replaces ? 2 : 0;
    return 1;
}
static void note_read(uint64_t ns) {
    waits.notes++;
    waits.noted_ns = ns > waits.noted_ns ? ns : waits.noted_ns;
}
static uint64_t add_progress(struct session *s, uint64_t id, uint64_t n) {
    waits.progress += n;
    return monarch_progress(s, id, n);
}
/* The reports of the library. n: number of reported reads; bytes, at: the result and the offset of
 * the last reported read; unseen: the number of bytes in the last report about reads that the
 * library will not see. */
static struct {
    int is_over, n;
    int64_t bytes, at, unseen;
} told;
static int64_t tell_read(int fd, int64_t n, int64_t at) {
    told.n++;
    told.bytes = n;
    told.at = at;
    return monarch_note_read(fd, n, at);
}
static int is_direct_over(int fd, uint64_t word) {
    (void)fd;
    (void)word;
    return told.is_over;
}
#define monarch_direct_is_over(fd, word) is_direct_over(fd, word)
#define monarch_note_read(fd, n, at) tell_read(fd, n, at)
#define monarch_progress_unseen(s, id, n) (told.unseen = (int64_t)(n), (void)(s), (void)(id))
#define monarch_demand_and_wait(w) wait_for_unit(w)
#define monarch_note_source_read(ns) note_read(ns)
#define monarch_progress(s, id, n) add_progress(s, id, n)
#include "preload/calls/read.c"

#include <dlfcn.h>

#include "made.h"

static struct {
    int fd, other; /* just before the read, `fd` becomes a duplicate of `other` */
    uint64_t *word, becomes;
    int is_armed, error;
    size_t most;
    int again; /* if not negative: just after the read, `fd` becomes a duplicate of `again` */
    uint64_t tracked;
} meanwhile = {.again = -1};

static void act(void) {
    if (!meanwhile.is_armed)
        return;
    meanwhile.is_armed = 0;
    if (meanwhile.other >= 0)
        dup2(meanwhile.other, meanwhile.fd);
    if (meanwhile.word)
        *meanwhile.word = meanwhile.becomes;
}
static ssize_t in_kernel(int fd, void *buf, size_t n, off_t at) {
    act();
    if (meanwhile.error) {
        errno = meanwhile.error;
        return -1;
    }
    long r = sys_pread(fd, buf, n < meanwhile.most ? n : meanwhile.most, at);
    if (meanwhile.again >= 0) {
        dup2(meanwhile.again, meanwhile.fd);
        monarch_track_table[meanwhile.fd] = meanwhile.tracked;
        meanwhile.again = -1;
    }
    return monarch_result(r);
}

/* Arranges two effects of the next read at the source. `fd` becomes a duplicate of `other`, unless
 * `other` is negative. *word gets the value `becomes`, unless `word` is NULL. */
EXPORT void reads_meanwhile(int fd, int other, uint64_t *word, uint64_t becomes) {
    meanwhile.fd = fd;
    meanwhile.other = other;
    meanwhile.word = word;
    meanwhile.becomes = becomes;
    meanwhile.is_armed = 1;
    monarch_real.pread = (void *)in_kernel;
}
/* Arranges a further effect of the next read at the source. Directly after the read, the `fd` of
 * reads_meanwhile becomes a duplicate of `again`, and the descriptor's word in the table of tracked
 * descriptors becomes `tracked`. */
EXPORT void reads_open_again(int again, uint64_t tracked) {
    meanwhile.again = again;
    meanwhile.tracked = tracked;
}
/* From now on, the library's reads at the source fail with the errno `error`. If `error` is 0, the
 * reads succeed, and `most` is the largest number of bytes that a read returns. */
EXPORT void reads_answer(int error, size_t most) {
    meanwhile.error = error;
    meanwhile.most = most;
    monarch_real.pread = (void *)in_kernel;
}
/* Makes the next `fills` waits succeed: each fills the next unit of the copy in this slot.
 * replaces: whether each of these waits also makes the entry describe another file. */
EXPORT void reads_wait(struct session *s, int slot, uint64_t id, int fills, int replaces) {
    memset(&waits, 0, sizeof waits);
    waits.fill = (struct monarch_fill *)&s->fills->fill[slot];
    waits.version = (uint32_t *)&monarch_entries(s->catalog)[id].version;
    waits.fills = fills;
    waits.replaces = replaces;
}
EXPORT int reads_waits(void) { return waits.n; }
EXPORT int reads_notes(void) { return waits.notes; }
EXPORT uint64_t reads_noted_ns(void) { return waits.noted_ns; }
EXPORT uint64_t reads_progress(void) { return waits.progress; }
EXPORT uint64_t reads_fills(const struct session *s) { return (uint64_t)s->fills; }
/* Forgets the library's reports on reads. is_over: whether the library finds that direct reading of
 * a file is over, so that a copy may serve the file's reads. */
EXPORT void reads_tell(int is_over) {
    memset(&told, 0, sizeof told);
    told.is_over = is_over;
}
EXPORT int64_t reads_told(int i) {
    const int64_t all[] = {told.n, told.bytes, told.at, told.unseen};
    return all[i];
}
EXPORT int reads_are_guarded(void) { return are_guarded(); }
EXPORT void reads_end(void) {
    meanwhile.is_armed = meanwhile.error = 0;
    meanwhile.again = -1;
    meanwhile.most = MOST;
    monarch_real.pread = NULL;
}
/* If `is` is 1, the library behaves as with an older libc, which lacks preadv2. */
EXPORT void reads_lack_preadv2(int is) { monarch_real.preadv2 = is ? (void *)1 : NULL; }
EXPORT int reads_find(struct session *s, int fd, uint64_t *out) {
    struct monarch_wanted w = {.session = s};
    int found = monarch_find_file(fd, monarch_tracked(fd), &w);
    out[0] = w.id;
    out[1] = w.ino;
    out[2] = w.version;
    return found;
}
EXPORT int reads_are_usable(const void *parts, int count, uint64_t *total) {
    size_t n;
    int are = are_usable(parts, count, &n);
    *total = n;
    return are;
}
/* Returns the result of an interposed call as one number: -errno if the call has failed, and -9999
 * if the call has succeeded but has changed errno. */
static int64_t result(ssize_t r) { return r < 0 ? -errno : errno == 54321 ? r : -9999; }
EXPORT int64_t reads_call(const char *call, int fd, void *buf, uint64_t n, int64_t at) {
    /* the parts have different sizes, and one of them is empty */
    size_t first = n * 5 / 12;
    const struct iovec parts[] = {{buf, first}, {buf, 0}, {(char *)buf + first, n - first}};
    errno = 54321;
    if (!strcmp(call, "pread"))
        return result(pread(fd, buf, n, at));
    if (!strcmp(call, "__pread_chk"))
        return result(__pread_chk(fd, buf, n, at, n));
    if (!strcmp(call, "preadv"))
        return result(preadv(fd, parts, 3, at));
    if (!strcmp(call, "preadv2"))
        return result(preadv2(fd, parts, 3, at, 0));
    if (!strcmp(call, "preadv2 with flags"))
        return result(preadv2(fd, parts, 3, at, RWF_NOWAIT));
    if (!strcmp(call, "read"))
        return result(read(fd, buf, n));
    if (!strcmp(call, "__read_chk"))
        return result(__read_chk(fd, buf, n, n));
    if (!strcmp(call, "readv"))
        return result(readv(fd, parts, 3));
    return result(preadv2(fd, parts, 3, -1, 0));
}
