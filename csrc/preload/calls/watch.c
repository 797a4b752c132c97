/* Interposes inotify_add_watch, so that a file watched for opens or reads is always read from the
 * source.
 *
 * If a program read the copy, inotify would not report this to the program that watches the
 * source's file. */
#include <string.h>
#include <sys/inotify.h>

#include "preload/changes/record.h"
#include "preload/fill/serve.h"
#include "preload/process/calls.h"
#include "preload/session/tell.h"
#include "shared/sys.h"

#define READS (IN_ACCESS | IN_OPEN | IN_CLOSE_NOWRITE)

static void leave_files_in(struct session *s, const struct stat *directory) {
    const struct monarch_catalog *c = monarch_catalog_of(s);
    uint64_t count = c ? __atomic_load_n(&c->count, __ATOMIC_ACQUIRE) : 0;
    for (uint64_t i = 0; i < count; i++) {
        const struct monarch_entry *e = &monarch_entries(c)[i];
        const char *path = monarch_pool(c, e->path), *slash = memrchr(path, '/', e->path_len);
        uint64_t dev = s->control->source[e->source].dev;
        int64_t above = dev == directory->st_dev && e->kind == MONARCH_FILE
                            ? monarch_find(c, e->source, path, slash ? (size_t)(slash - path) : 0)
                            : -1;
        if (above >= 0 && monarch_entries(c)[above].ino == directory->st_ino)
            monarch_mark_changed(s->clients, dev, e->ino);
    }
}

PUBLIC int inotify_add_watch(int fd, const char *path, uint32_t mask) {
    struct session *s = mask & READS ? session_for_change() : NULL;
    int is_told = mask & READS && monarch_lacks_room();
    struct stat st;
    MAYBE_NULL(path);
    if ((s || is_told) && path &&
        sys_fstatat(AT_FDCWD, path, &st, mask & IN_DONT_FOLLOW ? AT_SYMLINK_NOFOLLOW : 0) == 0) {
        if (is_told)
            monarch_tell_change(&st, S_ISDIR(st.st_mode));
        if (!s || monarch_source_on(s, st.st_dev, 0) < 0)
            s = NULL;
        else if (S_ISREG(st.st_mode))
            monarch_mark_changed(s->clients, st.st_dev, st.st_ino);
        else if (S_ISDIR(st.st_mode))
            leave_files_in(s, &st);
    }
    return REAL(inotify_add_watch)(fd, path, mask);
}
