/* Include this file before a file of the library that opens descriptors for a moment. While such a
 * descriptor is open, no fork of the process may begin, and no program that another thread executes
 * may inherit the descriptor. */
#pragma once

#include "preload/process/momentary.h"
#include "shared/sys.h"

static int within, unguarded;

static void begin_moment(void) {
    within++;
    monarch_momentary_begin();
}
static void end_moment(void) {
    within--;
    monarch_momentary_end();
}
static int open_within(int dir, const char *path, int flags) {
    unguarded += within != 1 || !(flags & O_CLOEXEC);
    return sys_openat(dir, path, flags);
}
/* Returns whether two conditions hold. First, each descriptor that was opened since the last call
 * of this function was opened with O_CLOEXEC, between monarch_momentary_begin and
 * monarch_momentary_end. Second, each call of monarch_momentary_begin was followed by one of
 * monarch_momentary_end. */
static int are_guarded(void) {
    int are = !within && !unguarded;
    within = unguarded = 0;
    return are;
}

#define monarch_momentary_begin() begin_moment()
#define monarch_momentary_end() end_moment()
#define sys_openat(dir, path, flags) open_within(dir, path, flags)
