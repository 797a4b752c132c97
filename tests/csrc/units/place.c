/* In this unit, the functions of preload/calls/place.c do not reach the kernel. Each call of a libc
 * function is recorded, and so is each step that the library takes before or after the call. */
#include <stdarg.h>

#include "preload/mappings/mappings.h"
#include "preload/process/calls.h"
#include "preload/session/roots.h"
#include "steps.h"

static int result; /* what each original (function of libc) returns; also what the child's function
                      returns */
#define monarch_roots_are_foreign() step("foreign")
#define monarch_roots_may_differ() step("roots")
#define monarch_rights_may_differ() step("rights")
#define monarch_mappings_end() step("mappings")
#include "preload/calls/place.c"

#include "made.h"

static int original_chroot(const char *path) {
    step("chroot %s", path);
    return result;
}
static int original_unshare(int flags) {
    step("unshare %#x", (unsigned)flags);
    return result;
}
static int original_setns(int fd, int type) {
    step("setns %d %d", fd, type);
    return result;
}
static int original_capset(void *header, const void *data) {
    step("capset %s %s", (const char *)header, (const char *)data);
    return result;
}
static int original_setgroups(size_t n, const gid_t *groups) {
    step("setgroups %zu %u %u", n, groups[0], groups[1]);
    return result;
}
static int original_initgroups(const char *user, gid_t group) {
    step("initgroups %s %u", user, group);
    return result;
}
static int original_setgid(gid_t gid) {
    step("setgid %u", gid);
    return result;
}
static int original_setegid(gid_t gid) {
    step("setegid %u", gid);
    return result;
}
static int original_setregid(gid_t real, gid_t effective) {
    step("setregid %u %u", real, effective);
    return result;
}
static int original_setresgid(gid_t real, gid_t effective, gid_t saved) {
    step("setresgid %u %u %u", real, effective, saved);
    return result;
}

/* Replaces libc's functions by the functions above (is = 1), or lets the library find libc's
 * functions again (is = 0). */
static void replace(int is) {
#define ORIGINAL(name) monarch_real.name = is ? (void *)original_##name : NULL;
    ORIGINAL(chroot)
    ORIGINAL(unshare)
    ORIGINAL(setns)
    ORIGINAL(capset)
    ORIGINAL(setgroups)
    ORIGINAL(initgroups)
    ORIGINAL(setgid)
    ORIGINAL(setegid)
    ORIGINAL(setregid)
    ORIGINAL(setresgid)
}

static int make(const char *call, int flags) {
    static char header[] = "h";
    const gid_t groups[] = {7, 8};
    if (!strcmp(call, "chroot"))
        return chroot("/r");
    if (!strcmp(call, "unshare"))
        return unshare(flags);
    if (!strcmp(call, "setns"))
        return setns(3, 4);
    if (!strcmp(call, "capset"))
        return capset(header, "d");
    if (!strcmp(call, "setgroups"))
        return setgroups(2, groups);
    if (!strcmp(call, "initgroups"))
        return initgroups("u", 1);
    if (!strcmp(call, "setgid"))
        return setgid(1);
    if (!strcmp(call, "setegid"))
        return setegid(1);
    if (!strcmp(call, "setregid"))
        return setregid(1, 2);
    return setresgid(1, 2, 3);
}

/* Makes the call while libc's function is replaced by one that returns `returned`. Returns the
 * call's result. */
EXPORT int place_call(const char *call, int flags, int returned) {
    steps[0] = 0;
    result = returned;
    replace(1);
    int r = make(call, flags);
    replace(0);
    return r;
}
EXPORT const char *place_steps(void) { return steps; }
/* Makes the library forget that a thread may have its own root directory. */
EXPORT void place_forget(void) { roots_part = 0; }

static char stack[4096] __attribute__((aligned(16)));
#define TOP (stack + sizeof stack - 8) /* deliberately not aligned to 16 bytes */
static int arguments[4]; /* the argument of the child's function, and three more for clone */
static int run_child(void *data) {
    step(data == &arguments[0] ? "run" : "run with another argument");
    return result;
}
/* Stands for libc's clone. Checks the arguments, and calls the child's function instead of making a
 * child. The step `plain` shows that clone got the program's own stack. */
static int original_clone(int (*run)(void *), void *top, int flags, void *data, ...) {
    va_list args;
    va_start(args, data);
    int is_passed = va_arg(args, int *) == &arguments[1] && va_arg(args, int *) == &arguments[2] &&
                    va_arg(args, int *) == &arguments[3];
    va_end(args);
    int is_given = top == TOP;
    int is_right =
        !top || is_given || ((char *)top > stack && (char *)top < TOP && (uintptr_t)top % 16 == 0);
    step("clone %#x%s%s", (unsigned)flags, is_passed ? "" : " with other arguments",
         is_right ? "" : " on another stack");
    if (is_given)
        step("plain");
    /* the child uses the stack below `top` */
    if (top)
        memset(stack, 0xaa, (size_t)((char *)top - stack));
    return run ? run(data) : result;
}
/* Calls clone. has_run, has_stack: whether the program passes a function and a stack. */
EXPORT int place_clone(int flags, int has_run, int has_stack, int returned) {
    steps[0] = 0;
    result = returned;
    monarch_real.clone = (void *)original_clone;
    int r = clone(has_run ? run_child : NULL, has_stack ? TOP : NULL, flags, (void *)&arguments[0],
                  (void *)&arguments[1], (void *)&arguments[2], (void *)&arguments[3]);
    monarch_real.clone = NULL;
    return r;
}
