/* Interposed calls that duplicate descriptors, close them, or set their properties.
 *
 * A tracked descriptor refers to a source's file that had no copy when the program opened it. A
 * table lists all tracked descriptors (track.h). A backing descriptor belongs to the library. It
 * refers to the source's file of a copy that the program has open (backing.h). The calls below
 * update the table and the backing descriptors. */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>

#include "preload/calls/descriptors.h"
#include "preload/changes/record.h"
#include "preload/fill/handover.h"
#include "preload/fill/progress.h"
#include "preload/fill/serve.h"
#include "preload/mappings/mappings.h"
#include "preload/process/calls.h"
#include "preload/process/momentary.h"
#include "preload/promotion/promote.h"
#include "shared/sys.h"

static void will_close_direct(int fd) {
    uint64_t w = monarch_tracked(fd);
    if (w & TRACK_DIRECT)
        monarch_close_direct(fd, w);
}

/* Closes a descriptor that is tracked or may be a backing descriptor. A backing descriptor belongs
 * to the library, so the program's call fails with EBADF. This is a separate function, so that
 * `close` makes only two checks for all other descriptors. */
__attribute__((noinline)) static int close_known(int fd) {
    if (monarch_has_backing() && monarch_is_backing(fd)) {
        errno = EBADF;
        return -1;
    }
    will_close_direct(fd);
    monarch_will_close(fd);
    return REAL(close)(fd);
}

PUBLIC int close(int fd) {
    close_call real = REAL_IF_FOUND(close);
    if (__builtin_expect(monarch_tracked(fd) || monarch_has_backing(), 0) || !real)
        return close_known(fd);
    return real(fd);
}

/* Call this before libc closes a stream: libc closes the stream's descriptor internally, so the
 * library does not see that close. */
void monarch_will_close_stream(FILE *stream) {
    if (!stream || !__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE))
        return;
    int old_errno = errno, fd = fileno(stream); /* a stream in memory has no descriptor */
    monarch_progress_end(stream, fd);
    will_close_direct(fd);
    monarch_will_close(fd);
    errno = old_errno;
}

PUBLIC int fclose(FILE *stream) {
    monarch_will_close_stream(stream);
    return REAL(fclose)(stream);
}

/* glibc before 2.34 has neither close_range nor closefrom. */
static int real_close_range(unsigned first, unsigned last, int flags) {
    if (REAL(close_range))
        return REAL(close_range)(first, last, flags);
    return (int)monarch_result(sys6(SYS_close_range, first, last, flags, 0, 0, 0));
}

/* Returns whether the kernel supports close_range (since Linux 5.9) with these flags. Tries a call
 * for the number UINT_MAX. No descriptor has this number, so the call closes nothing. */
static int can_close_range(int flags) {
    int old_errno = errno;
    int can = real_close_range(UINT_MAX, UINT_MAX, flags & ~CLOSE_RANGE_UNSHARE) == 0;
    errno = old_errno;
    return can;
}

/* Closes the descriptors from `first` to `last`. If `flags` contains CLOSE_RANGE_CLOEXEC, only sets
 * FD_CLOEXEC on them. A backing descriptor (backing.h) stays open if its copy's descriptor is
 * outside the range. */
static int close_around_backing(unsigned first, unsigned last, int flags) {
    int r = 0;
    if (flags & CLOSE_RANGE_CLOEXEC)
        monarch_backing_flag_range(first, last);
    else
        monarch_backing_close_range(first, last);
    for (uint64_t from = first, upto; r == 0 && from <= last; from = upto + 1) {
        upto = monarch_backing_that_stays(from, first, last);
        if (upto > from)
            r = real_close_range((unsigned)from, (unsigned)(upto - 1), flags);
    }
    return r;
}

PUBLIC int close_range(unsigned first, unsigned last, int flags) {
    if (!(flags & CLOSE_RANGE_CLOEXEC))
        monarch_untrack_range(first, last);
    return monarch_has_backing() && first <= last && can_close_range(flags)
               ? close_around_backing(first, last, flags)
               : real_close_range(first, last, flags);
}

PUBLIC void closefrom(int first) {
    unsigned from = first < 0 ? 0 : (unsigned)first;
    monarch_untrack_range(from, UINT_MAX);
    if (monarch_has_backing() && can_close_range(0)) {
        close_around_backing(from, UINT_MAX, 0);
        return;
    }
    monarch_backing_close_range(from, UINT_MAX);
    if (REAL(closefrom))
        REAL(closefrom)(first);
    else
        real_close_range(from, UINT_MAX, 0);
}

/* Despite its name, fcloseall leaves the descriptors of the streams open. The library nevertheless
 * stops tracking all descriptors. That does no harm: reads of an untracked descriptor go to the
 * kernel. */
PUBLIC int fcloseall(void) {
    monarch_untrack_range(0, UINT_MAX);
    return REAL(fcloseall)();
}

static void will_share(int fd) { monarch_track_flag(fd, TRACK_SHARED); }

static int duplicated(int fd, int fresh) {
    if (monarch_has_backing())
        monarch_backing_duplicate_slow(fd, fresh);
    if (__builtin_expect(monarch_tracked(fd) != 0, 0) && fresh >= 0 && fresh != fd)
        monarch_track_again(fd, fresh);
    return fresh;
}

PUBLIC int dup(int fd) {
    will_share(fd);
    return duplicated(fd, REAL(dup)(fd));
}

static void will_replace(int fd, int fresh, int flags) {
    will_share(fd);
    if (fd != fresh)
        monarch_untrack(fresh);
    if (monarch_has_backing())
        monarch_backing_replace_slow(fd, fresh, flags);
}

PUBLIC int dup2(int fd, int fresh) {
    will_replace(fd, fresh, 0);
    return duplicated(fd, REAL(dup2)(fd, fresh));
}

PUBLIC int dup3(int fd, int fresh, int flags) {
    will_replace(fd, fresh, flags);
    return duplicated(fd, REAL(dup3)(fd, fresh, flags));
}

/* Returns whether the command sets a lease, or chooses how the kernel reports that another process
 * wants to open the leased file. F_SETSIG chooses the signal. F_SETOWN and F_SETOWN_EX choose the
 * process that gets the signal. */
static int is_lease(int command) {
    return command == F_SETLEASE || command == F_SETSIG || command == F_SETOWN ||
           command == F_SETOWN_EX;
}

static int hangs_on_file(int command) {
    return command == F_SETFL || command == F_NOTIFY || is_lease(command);
}

/* Returns the flags that fcntl(F_GETFL) must report. The library opens a copy with O_NOFOLLOW in
 * addition to the program's flags, so O_NOFOLLOW is removed here. Otherwise, a program that opens
 * the descriptor's link in /proc with the reported flags would get an error. */
__attribute__((noinline)) static int program_flags(int fd, int flags) {
    return monarch_is_copy(fd, NULL) ? monarch_flags_of_copy(flags) : flags;
}

PUBLIC int fcntl(int fd, int command, ...) {
    va_list args;
    va_start(args, command);
    /* an integer argument arrives in the same register as a pointer, and is passed on unchanged */
    void *arg = va_arg(args, void *);
    va_end(args);
    struct monarch_pin pin;
    if (monarch_is_lock(command))
        return monarch_lock(fd, command, arg);
    if (is_lease(command) && !(monarch_settle(fd) && monarch_become_source(fd))) {
        errno = ENOLCK;
        return -1;
    }
    if (hangs_on_file(command))
        monarch_keep_locks(fd);
    if (command == F_DUPFD || command == F_DUPFD_CLOEXEC)
        will_share(fd);
    if (command == F_SETFD && monarch_has_backing())
        monarch_backing_flag_slow(fd, (int)(intptr_t)arg);
    /* A promotion makes the descriptor refer to the copy. It would also set FD_CLOEXEC back to its
     * old value. So the descriptor is pinned during the call: no other thread can promote it
     * (track.h). */
    if (command == F_SETFD && monarch_track_pin(fd, 0, &pin)) {
        int done = REAL(fcntl)(fd, command, arg);
        monarch_track_unpin(fd, &pin, pin.word);
        return done;
    }
    int r = REAL(fcntl)(fd, command, arg);
    if (command == F_GETFL && r >= 0 && r & O_NOFOLLOW)
        return program_flags(fd, r);
    return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? duplicated(fd, r) : r;
}

/* Call this when the program sets, reads or moves a descriptor's offset. From then on, the library
 * never promotes the descriptor (makes it refer to the copy), because a promotion does not preserve
 * the offset. */
static void uses_offset(int fd) { monarch_track_flag(fd, TRACK_OFFSET); }

/* Handles lseek with SEEK_DATA or SEEK_HOLE. A copy has no holes. So for a copy of a sparse file,
 * searches the source's file through the backing descriptor, and then moves the offset of `fd`. */
static off_t seek_hole(int fd, off_t offset, int whence) {
    struct stat st;
    int sparse = fstat(fd, &st) == 0 && st.st_blocks * 512 < st.st_size;
    int backing = sparse ? monarch_backing_fd(fd) : -1;
    off_t at = REAL(lseek)(backing >= 0 ? backing : fd, offset, whence);
    return at < 0 || backing < 0 ? at : REAL(lseek)(fd, at, SEEK_SET);
}

PUBLIC off_t lseek(int fd, off_t offset, int whence) {
    uses_offset(fd);
    if (__builtin_expect(whence == SEEK_DATA || whence == SEEK_HOLE, 0))
        return seek_hole(fd, offset, whence);
    return REAL(lseek)(fd, offset, whence);
}

void monarch_count_stream(int fd) {
    uint64_t w = monarch_tracked(fd);
    struct session *s = w ? monarch_track_session(w) : NULL;
    const struct monarch_entry *e = s ? monarch_entry_of(s, monarch_track_entry(w)) : NULL;
    if (e)
        monarch_count_source(s, e->size);
}

/* The calls below move a descriptor's offset inside libc or the kernel, and the library does not
 * see these moves. */

PUBLIC FILE *fdopen(int fd, const char *mode) {
    uses_offset(fd);
    FILE *f = REAL(fdopen)(fd, mode);
    if (f)
        monarch_count_stream(fd);
    return f;
}

/* Call this after sendfile, splice or copy_file_range. Counts the n bytes that the call has read
 * from `from`, and returns n. *at: the offset after the last byte read. `at` is NULL if the call
 * used the descriptor's own offset. */
static ssize_t count_moved(int from, ssize_t n, const off64_t *at) {
    return monarch_note_read(from, n, at && n > 0 ? *at - n : -1);
}

PUBLIC ssize_t sendfile(int to, int from, off_t *at, size_t n) {
    if (!at)
        uses_offset(from);
    ssize_t r = REAL(sendfile)(to, from, at, n);
    return count_moved(from, r, at);
}

PUBLIC ssize_t splice(int from, off64_t *at, int to, off64_t *to_at, size_t n, unsigned flags) {
    if (!at)
        uses_offset(from);
    ssize_t r = REAL(splice)(from, at, to, to_at, n, flags);
    return count_moved(from, r, at);
}

static ssize_t real_copy_file_range(int from, off64_t *at, int to, off64_t *to_at, size_t n,
                                    unsigned flags) {
    if (REAL(copy_file_range)) /* since glibc 2.27 */
        return REAL(copy_file_range)(from, at, to, to_at, n, flags);
    return monarch_result(
        sys6(SYS_copy_file_range, from, (long)at, to, (long)to_at, (long)n, flags));
}

static int is_same_file(int one, int other) {
    struct stat a, b;
    int old_errno = errno;
    int is_same = fstat(one, &a) == 0 && fstat(other, &b) == 0 && a.st_ino == b.st_ino &&
                  a.st_dev == b.st_dev;
    errno = old_errno;
    return is_same;
}

/* If `from` is a descriptor of a copy, the bytes are read through its backing descriptor in two
 * cases. First, `to` is a descriptor of the source's file. The kernel must refuse overlapping
 * ranges of one file, but it takes the copy and the source's file for two files. Second, the kernel
 * has refused the call (EXDEV), because the copy and `to` are on different file systems. */
PUBLIC ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *to_at, size_t n,
                               unsigned flags) {
    if (!at)
        uses_offset(from);
    int old_errno = errno;
    int backing =
        monarch_is_copy(from, NULL) && is_same_file(from, to) ? monarch_backing_fd(from) : -1;
    if (backing < 0) {
        ssize_t r = real_copy_file_range(from, at, to, to_at, n, flags);
        backing = r < 0 && errno == EXDEV ? monarch_backing_fd(from) : -1;
        if (backing < 0)
            return count_moved(from, r, at);
    }
    errno = old_errno;
    ssize_t r = real_copy_file_range(backing, at, to, to_at, n, flags);
    if (r > 0 && !at)
        sys_lseek(from, r, SEEK_CUR);
    return r;
}

PUBLIC pid_t fork(void) {
    monarch_track_share_all();
    monarch_momentary_before_fork();
    pid_t child = REAL(fork)();
    if (child == 0) {
        monarch_track_adopt();
        monarch_momentary_forget();
        monarch_mappings_after_fork();
    } else {
        monarch_momentary_after_fork();
    }
    return child;
}

TWIN(__close, close)
TWIN(__dup2, dup2)
TWIN(__fcntl, fcntl)
TWIN(__lseek, lseek)
TWIN(__fork, fork)
TWIN(_IO_fclose, fclose)
TWIN(_IO_fdopen, fdopen)
TWIN(fcntl64, fcntl)
TWIN(sendfile64, sendfile)
TWIN(lseek64, lseek)
