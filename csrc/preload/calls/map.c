/* Maps files of sources into memory (mmap).
 *
 * mmap waits, for a limited time, until the copy is complete. It does not wait if the copy will be
 * made from the program's own reads (handover.h). If no copy is complete in time, mmap maps the
 * source's file. A mapping of the copy may replace this mapping later (mappings.h). */
#include <errno.h>
#include <sys/mman.h>

#include "preload/calls/read.h"
#include "preload/descriptors/locked_files.h"
#include "preload/descriptors/track.h"
#include "preload/fill/handover.h"
#include "preload/fill/progress.h"
#include "preload/mappings/mappings.h"
#include "preload/process/calls.h"
#include "preload/process/momentary.h"
#include "preload/promotion/promote.h"
#include "preload/session/copies.h"
#include "shared/sys.h"

/* The interposed mmap must not be a cancellation point, but libc's open is one. So the copy is
 * opened and closed by raw system calls. ThreadSanitizer tracks descriptors by intercepting libc's
 * functions. So libc's functions are used under ThreadSanitizer. */
#ifdef __SANITIZE_THREAD__
#define OPEN(path) REAL(open)(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW)
#define CLOSE(fd) REAL(close)(fd)
#else
#define OPEN(path) sys_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW)
#define CLOSE(fd) sys_close(fd)
#endif

/* Waits until the copy is complete, and writes the copy's path to `path`. Returns 0 if the copy is
 * not complete in time. */
static int find_whole(struct monarch_wanted *w, char *path) {
    w->at = 0;
    w->n = w->entry->size;
    if (!monarch_is_coming(w, monarch_word_of(w)) || !monarch_wait_for_all(w))
        return 0;
    uint64_t word = monarch_word_of(w);
    if (monarch_is_replaced(w))
        return 0;
    monarch_copy_path(w->session, word, path);
    return 1;
}

static void *map_copy(void *at, size_t n, int prot, int flags, struct monarch_wanted *w,
                      off_t offset) {
    char path[MONARCH_COPY_PATH];
    if (!find_whole(w, path))
        return MAP_FAILED;
    monarch_momentary_begin();
    int copy = OPEN(path);
    void *r = copy >= 0 ? REAL(mmap)(at, n, prot, flags, copy, offset) : MAP_FAILED;
    if (copy >= 0)
        CLOSE(copy);
    monarch_momentary_end();
    return r;
}

/* Counts the file's bytes in [offset, offset + n) as read, and returns their number. */
static uint64_t count_mapped(const struct monarch_wanted *w, size_t n, off_t offset) {
    uint64_t left = (uint64_t)offset < w->entry->size ? w->entry->size - (uint64_t)offset : 0;
    n = n < left ? n : left;
    monarch_progress(w->session, w->id, n);
    return n;
}

static void *map_tracked(void *at, size_t n, int prot, int flags, int fd, off_t offset,
                         uint64_t tracked) {
    struct monarch_wanted w;
    /* With TRACK_DIRECT, the daemon makes the copy from the pages that the program's reads leave in
     * the page cache. The library usually sends the daemon the descriptor after these reads. But
     * the library does not see reads through a mapping, so it sends the descriptor now. */
    if (tracked & TRACK_DIRECT)
        monarch_hand_over(fd, tracked, 0);
    if (!monarch_find_file(fd, tracked, &w))
        return REAL(mmap)(at, n, prot, flags, fd, offset);
    int moves = w.session->control->promote_mappings && monarch_mapping_can_wait(prot, flags);
    int old_errno = errno;
    void *r = tracked & TRACK_DIRECT ? MAP_FAILED : map_copy(at, n, prot, flags, &w, offset);
    if (r != MAP_FAILED) {
        monarch_mappings_say(r, n, MONARCH_FORGET);
        count_mapped(&w, n, offset);
        return r;
    }
    errno = old_errno;
    /* While map_copy was waiting, another thread may have closed the descriptor, and its number may
     * now refer to another file. */
    int is_callers = monarch_is_callers(fd, &w);
    if (!is_callers)
        monarch_momentary_begin();
    int named = is_callers ? -1 : monarch_open_by_name(&w), from = named >= 0 ? named : fd;
    r = REAL(mmap)(at, n, prot, flags, from, offset);
    if (r != MAP_FAILED && moves && monarch_is_callers(from, &w)) {
        monarch_mappings_say(r, n, MONARCH_FORGET);
        monarch_mapping_add(&w, r, n, flags, (uint64_t)offset);
    }
    if (r != MAP_FAILED)
        monarch_count_source(w.session, count_mapped(&w, n, offset));
    if (named >= 0)
        monarch_close_unseen(named, -1);
    if (!is_callers)
        monarch_momentary_end();
    return r;
}

PUBLIC void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset) {
    uint64_t tracked = flags & MAP_ANONYMOUS ? 0 : monarch_tracked(fd);
    if (flags & MAP_FIXED)
        monarch_mappings_say(at, n, MONARCH_FORGET);
    if (__builtin_expect(tracked != 0, 0) && !(prot & PROT_EXEC))
        return map_tracked(at, n, prot, flags, fd, offset, tracked);
    void *r = REAL(mmap)(at, n, prot, flags, fd, offset);
    /* The library may still remember an older mapping at these addresses, if it did not see the
     * removal of that mapping. So it forgets the older mapping now. */
    if (r != MAP_FAILED && !(flags & MAP_FIXED))
        monarch_mappings_say(r, n, MONARCH_FORGET);
    return r;
}

TWIN(mmap64, mmap)
