/* This file is linked into a library for a test. If the program has set `stop_next`, the next
 * thread that compares a file with its scanned attributes stops the process right after the
 * comparison. */
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "preload/session/copies.h"

__attribute__((visibility("default"))) int stop_next;

int __real_monarch_is_as_scanned(const struct session *s, const struct monarch_entry *e,
                                 const struct stat *st);
int __wrap_monarch_is_as_scanned(const struct session *s, const struct monarch_entry *e,
                                 const struct stat *st);
int __wrap_monarch_is_as_scanned(const struct session *s, const struct monarch_entry *e,
                                 const struct stat *st) {
    int is = __real_monarch_is_as_scanned(s, e, st), stops = stop_next;
    stop_next = 0;
    if (stops)
        kill(getpid(), SIGSTOP);
    return is;
}
