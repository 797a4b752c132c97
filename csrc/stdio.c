#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "calls.h"
#include "serve.h"
#include "sys.h"

/* "r" with any of glibc's letters but '+'; what follows a comma is a character set. */
static int only_reads(const char *mode) {
    size_t letters = strcspn(mode, ",");
    return mode[0] == 'r' && !memchr(mode, '+', letters);
}

static FILE *changed(FILE *f) {
    if (f)
        monarch_changed_fd(fileno(f));
    return f;
}

PUBLIC FILE *fopen(const char *path, const char *mode) {
    char real[MONARCH_PATH_MAX];
    struct monarch_opening o;
    if (!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE))
        return REAL(fopen)(path, mode);
    if (!only_reads(mode))
        return changed(REAL(fopen)(monarch_path_to_change(AT_FDCWD, path, 1, real), mode));
    struct session *s = session_for_reading();
    if (!s)
        return REAL(fopen)(path, mode);
    if (monarch_names_copy(path, real) && real[0])
        path = real;
    monarch_look_up(s, AT_FDCWD, path, O_RDONLY, &o);
    if (o.served) {
        int old_errno = errno;
        FILE *f = REAL(fopen)(o.copy, mode);
        if (f) {
            monarch_opened_copy(s, &o);
            return f;
        }
        errno = old_errno;
    }
    FILE *f = REAL(fopen)(path, mode);
    if (f && o.id != MONARCH_OUTSIDE)
        monarch_opened_source(s, &o, fileno(f));
    return f;
}

/* freopen closes the stream even when it fails, so the copy is opened first and reached by its
 * descriptor's name: it cannot go away in between. */
static FILE *reopen_copy(const struct monarch_opening *o, const char *mode, FILE *stream) {
    char name[32];
    struct stat st;
    FILE *f = NULL;
    int fd = o->served ? sys_openat(AT_FDCWD, o->copy, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return NULL;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    if (sys_fstatat(AT_FDCWD, name, &st, 0) == 0)
        f = REAL(freopen)(name, mode, stream);
    sys_close(fd);
    return f;
}

PUBLIC FILE *freopen(const char *path, const char *mode, FILE *stream) {
    char real[MONARCH_PATH_MAX];
    struct monarch_opening o;
    if (!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE))
        return REAL(freopen)(path, mode, stream);
    /* Without a path it opens its own file again: a copy's stream, its source file. */
    if (!path && monarch_is_copy(fileno(stream), real) && real[0])
        path = real;
    if (!only_reads(mode)) {
        if (path)
            path = monarch_path_to_change(AT_FDCWD, path, 1, real);
        else
            monarch_changed_fd(fileno(stream));
        return changed(REAL(freopen)(path, mode, stream));
    }
    struct session *s = session_for_reading();
    if (!s || !path)
        return REAL(freopen)(path, mode, stream);
    if (monarch_names_copy(path, real) && real[0])
        path = real;
    monarch_look_up(s, AT_FDCWD, path, O_RDONLY, &o);
    FILE *f = reopen_copy(&o, mode, stream);
    if (f) {
        monarch_opened_copy(s, &o);
        return f;
    }
    f = REAL(freopen)(path, mode, stream);
    if (f && o.id != MONARCH_OUTSIDE)
        monarch_opened_source(s, &o, fileno(f));
    return f;
}

TWINS_OF_STDIO(TWIN)
