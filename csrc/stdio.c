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
    struct session *s = session_for_reading();
    char copy[MONARCH_COPY_PATH];
    if (!__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE))
        return REAL(fopen)(path, mode);
    if (!only_reads(mode)) {
        if (mode[0] == 'w')
            monarch_changed_path(AT_FDCWD, path, 1);
        return changed(REAL(fopen)(path, mode));
    }
    const struct monarch_entry *e = s ? monarch_copy_for(s, AT_FDCWD, path, O_RDONLY, copy) : NULL;
    if (e) {
        int old_errno = errno;
        FILE *f = REAL(fopen)(copy, mode);
        monarch_count(s, e, f != NULL);
        if (f)
            return f;
        errno = old_errno;
    }
    return REAL(fopen)(path, mode);
}

/* freopen closes the stream even when it fails, so the copy is opened first and reached by its
 * descriptor's name: it cannot go away in between. */
static FILE *reopen_copy(struct session *s, const char *path, const char *mode, FILE *stream) {
    char copy[MONARCH_COPY_PATH], name[32];
    const struct monarch_entry *e = monarch_copy_for(s, AT_FDCWD, path, O_RDONLY, copy);
    if (!e)
        return NULL;
    int fd = sys_openat(AT_FDCWD, copy, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    FILE *f = NULL;
    struct stat st;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    if (sys_fstatat(AT_FDCWD, name, &st, 0) == 0)
        f = REAL(freopen)(name, mode, stream);
    sys_close(fd);
    monarch_count(s, e, f != NULL);
    return f;
}

PUBLIC FILE *freopen(const char *path, const char *mode, FILE *stream) {
    struct session *s = session_for_reading();
    if (!path || !__atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE))
        return REAL(freopen)(path, mode, stream);
    if (!only_reads(mode)) {
        if (mode[0] == 'w')
            monarch_changed_path(AT_FDCWD, path, 1);
        return changed(REAL(freopen)(path, mode, stream));
    }
    FILE *f = s ? reopen_copy(s, path, mode, stream) : NULL;
    return f ? f : REAL(freopen)(path, mode, stream);
}

TWINS_OF_STDIO(TWIN)
