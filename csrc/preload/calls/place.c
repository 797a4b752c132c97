/* Interposed calls that change which files a process sees under its paths, or which rights it
 * has. */
#include <errno.h>
#include <grp.h>
#include <sched.h>
#include <stdarg.h>

#include "preload/mappings/mappings.h"
#include "preload/process/calls.h"
#include "preload/session/roots.h"

/* 1: some thread may have a root directory of its own. The library can check only the root
 * directory of the process. So after the next chroot, this process uses no copies. */
static uint32_t roots_part; /* atomic */

static void root_may_part(void) { __atomic_store_n(&roots_part, 1, __ATOMIC_RELEASE); }

PUBLIC int chroot(const char *path) {
    if (__atomic_load_n(&roots_part, __ATOMIC_ACQUIRE))
        /* The process stops using copies before chroot is called. Otherwise, another thread could
         * check during the call whether the process sees the sources (roots.h), and could store a
         * result that is wrong afterwards. */
        monarch_roots_are_foreign();
    int r = REAL(chroot)(path);
    monarch_roots_may_differ();
    return r;
}

/* With CLONE_NEWNS, the process gets its own mounts. The library cannot see when these mounts
 * change, so the process no longer uses copies. With CLONE_FS or CLONE_NEWUSER, the calling thread
 * gets its own root directory. */
PUBLIC int unshare(int flags) {
    monarch_mappings_end();
    if (flags & (CLONE_FS | CLONE_NEWUSER))
        root_may_part();
    int r = REAL(unshare)(flags);
    if (r == 0 && (flags & CLONE_NEWNS))
        monarch_roots_are_foreign();
    if (r == 0)
        monarch_rights_may_differ();
    return r;
}

PUBLIC int setns(int fd, int type) {
    monarch_mappings_end();
    int r = REAL(setns)(fd, type);
    if (r == 0) {
        monarch_roots_are_foreign();
        monarch_rights_may_differ();
    }
    return r;
}

/* After capset, the calling thread may lack capabilities that the daemon has. Calls that change the
 * user, such as setuid, need not be interposed: copies belong to the daemon's user, and a process
 * of another user cannot open them. */
int capset(void *header, const void *data);
PUBLIC int capset(void *header, const void *data) {
    int r = REAL(capset)(header, data);
    if (r == 0)
        monarch_rights_may_differ();
    return r;
}

/* A process that leaves a group may lose the right to read a file. */
static int after_groups(int r) {
    if (r == 0)
        monarch_rights_may_differ();
    return r;
}

PUBLIC int setgroups(size_t n, const gid_t *groups) {
    return after_groups(REAL(setgroups)(n, groups));
}

PUBLIC int initgroups(const char *user, gid_t group) {
    return after_groups(REAL(initgroups)(user, group));
}

PUBLIC int setgid(gid_t gid) { return after_groups(REAL(setgid)(gid)); }
PUBLIC int setegid(gid_t gid) { return after_groups(REAL(setegid)(gid)); }

PUBLIC int setregid(gid_t real, gid_t effective) {
    return after_groups(REAL(setregid)(real, effective));
}

PUBLIC int setresgid(gid_t real, gid_t effective, gid_t saved) {
    return after_groups(REAL(setresgid)(real, effective, saved));
}

/* --- clone ------------------------------------------------------------------------------------ */

struct start {
    int (*run)(void *);
    void *data;
};

static int run_in_new_place(void *at) {
    struct start start = *(struct start *)at;
    monarch_roots_are_foreign();
    return start.run(start.data);
}

/* A child with its own namespaces must use no copies, like a process after unshare. So the child
 * starts in run_in_new_place, which first stops the use of copies, and then calls the program's
 * function `run`. `run` and its argument are stored at the top of the child's stack. With CLONE_VM
 * but without CLONE_FS, the child is a thread with its own root directory. */
PUBLIC int clone(int (*run)(void *), void *stack, int flags, void *data, ...) {
    va_list args;
    va_start(args, data);
    void *parent = va_arg(args, void *), *tls = va_arg(args, void *), *child = va_arg(args, void *);
    va_end(args);
    if ((flags & CLONE_VM) && !(flags & CLONE_FS))
        root_may_part();
    if ((flags & (CLONE_NEWNS | CLONE_NEWUSER)) && run && stack) {
        struct start *start = (struct start *)(((uintptr_t)stack & ~15UL) - sizeof *start);
        *start = (struct start){run, data};
        return REAL(clone)(run_in_new_place, start, flags, start, parent, tls, child);
    }
    return REAL(clone)(run, stack, flags, data, parent, tls, child);
}

TWIN(__clone, clone)
