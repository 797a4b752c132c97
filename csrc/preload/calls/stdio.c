/* Interposed calls that open streams on files (fopen, freopen).
 *
 * After the open, libc reads the file by internal calls, which the library does not see. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "preload/autostart/autostart.h"
#include "preload/calls/descriptors.h"
#include "preload/changes/record.h"
#include "preload/fill/open_wait.h"
#include "preload/fill/progress.h"
#include "preload/process/calls.h"
#include "preload/process/momentary.h"
#include "shared/sys.h"

/* Returns whether the mode is for reading only: it begins with "r" and has no '+'. The text after a
 * comma is ignored, because it names a character set. */
static int only_reads(const char *mode) {
    size_t letters = strcspn(mode, ",");
    return mode[0] == 'r' && !memchr(mode, '+', letters);
}

/* Call this after an open of a stream for writing. Records the change, unless the open has failed
 * (`f` is NULL). All modes for writing, except "r+", create the file if it does not exist. real: a
 * buffer of MONARCH_PATH_MAX bytes. */
static FILE *changed(FILE *f, const char *mode, char *real) {
    if (f)
        monarch_opened_for_change(fileno(f), mode[0] != 'r', AT_FDCWD, "", real);
    return f;
}

/* Call this after fopen or freopen was called for the source's file, even if that call has failed.
 * Sets TRACK_OFFSET, so that the descriptor is never promoted (made to refer to the copy). A
 * promotion does not preserve the offset, which libc moves without the library's knowledge. */
static FILE *opened_source(struct session *s, struct monarch_opening *o, const char *path,
                           uint64_t since_ns, FILE *f) {
    uint64_t took_ns = monarch_now_ns() - since_ns;
    if (f && o->id == MONARCH_OUTSIDE) {
        if (!monarch_opened_elsewhere(s, o, path, fileno(f)))
            return f;
        int old_errno = errno;
        monarch_look_up(s, AT_FDCWD, path, O_RDONLY, o);
        errno = old_errno;
    }
    if (f) {
        monarch_opened_source(s, o, O_RDONLY, took_ns, fileno(f));
        monarch_track_flag(fileno(f), TRACK_OFFSET);
        monarch_count_stream(fileno(f));
    } else if (o->entry) {
        monarch_not_opened(s, o);
    }
    return f;
}

static void opened_copy(struct session *s, const struct monarch_opening *o, const FILE *f) {
    monarch_opened_copy(s, o);
    if (o->waited)
        monarch_progress_stream(s, (uint64_t)o->id, f);
}

/* Opens a stream on a copy. A link in the place of the copy must not be followed. fopen has no mode
 * for O_NOFOLLOW, so open is used. Returns NULL if the copy cannot be opened, or if `mode` contains
 * more than the letters r, b and e (for example `ccs=`). The caller then opens the source's
 * file. */
static FILE *open_copy(const struct monarch_opening *o, const char *mode) {
    if (mode[strspn(mode, "rbe")])
        return NULL;
    int flags = O_RDONLY | (strchr(mode, 'e') ? O_CLOEXEC : 0);
    int fd = REAL(open)(o->copy, monarch_copy_flags(flags));
    FILE *f = fd >= 0 ? REAL(fdopen)(fd, mode) : NULL;
    if (fd >= 0 && !f)
        sys_close(fd);
    return f;
}

static FILE *open_for_reading(const char *path, const char *mode) {
    struct monarch_opening o;
    struct session *s = session_for_reading();
    if (!s) {
        FILE *f = REAL(fopen)(path, mode);
        monarch_autostart_opened(f ? fileno(f) : -1);
        return f;
    }
    monarch_look_up(s, AT_FDCWD, path, O_RDONLY, &o);
    if (o.served || monarch_wait_for_copy(s, &o)) {
        int old_errno = errno;
        FILE *f = open_copy(&o, mode);
        errno = old_errno;
        if (f) {
            opened_copy(s, &o, f);
            return f;
        }
    }
    uint64_t since_ns = monarch_now_ns();
    FILE *f = REAL(fopen)(path, mode);
    return opened_source(s, &o, path, since_ns, f);
}

/* The next two functions have a large buffer on their stack. They are separate functions, so that
 * calls that need no buffer use less stack: programs may open files in threads with small
 * stacks. */
__attribute__((noinline)) static FILE *open_again(const char *path, const char *mode) {
    char real[MONARCH_PATH_MAX];
    return open_for_reading(monarch_names_copy(path, real) && real[0] ? real : path, mode);
}

__attribute__((noinline)) static FILE *open_for_change(const char *path, const char *mode) {
    char real[MONARCH_PATH_MAX];
    path = monarch_file_to_change(AT_FDCWD, path, 1, real);
    return changed(REAL(fopen)(path, mode), mode, real);
}

PUBLIC FILE *fopen(const char *path, const char *mode) {
    MAYBE_NULL(path);
    if (!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE))
        return REAL(fopen)(path, mode);
    if (!only_reads(mode))
        return open_for_change(path, mode);
    return monarch_names_copy(path, NULL) ? open_again(path, mode) : open_for_reading(path, mode);
}

/* Reopens the stream on the copy. freopen closes the stream even if it cannot open the new file. So
 * this function first opens the copy itself, and then passes to freopen the name of that descriptor
 * in /proc. This name leads to the copy even if the copy was removed meanwhile. */
static FILE *reopen_copy(struct session *s, struct monarch_opening *o, const char *mode,
                         FILE *stream) {
    char name[32];
    struct stat st;
    FILE *f = NULL;
    if (!o->served && !monarch_wait_for_copy(s, o))
        return NULL;
    monarch_momentary_begin();
    int fd = sys_openat(AT_FDCWD, o->copy, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    if (fd >= 0 && sys_fstatat(AT_FDCWD, name, &st, 0) == 0)
        f = REAL(freopen)(name, mode, stream);
    if (fd >= 0)
        sys_close(fd);
    monarch_momentary_end();
    return f;
}

static FILE *reopen_for_reading(const char *path, const char *mode, FILE *stream) {
    struct monarch_opening o;
    struct session *s = session_for_reading();
    if (!s || !path)
        return REAL(freopen)(path, mode, stream);
    monarch_look_up(s, AT_FDCWD, path, O_RDONLY, &o);
    FILE *f = reopen_copy(s, &o, mode, stream);
    if (f) {
        opened_copy(s, &o, f);
        return f;
    }
    uint64_t since_ns = monarch_now_ns();
    f = REAL(freopen)(path, mode, stream);
    return opened_source(s, &o, path, since_ns, f);
}

/* Handles three cases of freopen: the path is NULL; the mode is for writing; or the path may be the
 * name of a copy's descriptor in /proc. If the path is NULL, libc's freopen opens the stream's own
 * file again. If that file is a copy, the path of the source's file is passed instead. */
__attribute__((noinline)) static FILE *reopen_special(const char *path, const char *mode,
                                                      FILE *stream) {
    char real[MONARCH_PATH_MAX];
    if (!path && monarch_is_copy(fileno(stream), real) && real[0])
        path = real;
    if (only_reads(mode))
        return reopen_for_reading(monarch_names_copy(path, real) && real[0] ? real : path, mode,
                                  stream);
    if (path)
        path = monarch_file_to_change(AT_FDCWD, path, 1, real);
    else
        monarch_changed_fd(fileno(stream));
    return changed(REAL(freopen)(path, mode, stream), mode, real);
}

PUBLIC FILE *freopen(const char *path, const char *mode, FILE *stream) {
    MAYBE_NULL(path);
    if (!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE))
        return REAL(freopen)(path, mode, stream);
    monarch_will_close_stream(stream);
    if (!path || !only_reads(mode) || monarch_names_copy(path, NULL))
        return reopen_special(path, mode, stream);
    return reopen_for_reading(path, mode, stream);
}

TWIN(_IO_fopen, fopen)
TWIN(fopen64, fopen)
TWIN(freopen64, freopen)
