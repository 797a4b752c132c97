/* Starts the daemon when a program first opens a file of a dataset, if the user has requested
 * autostart.
 *
 * The user requests autostart in the configuration or by MONARCH_AUTOSTART=1. The program's process
 * only launches a starter: a Python program (monarch_py/commands/autostart.py) that starts the
 * daemon. The process does not wait for the daemon. */
#pragma once

#include "preload/process/attributes.h"
#include "preload/session/session.h"

/* Atomic; 1: this process may have to start a daemon. */
extern uint32_t monarch_autostart HIDDEN;

/* Call this in the library's constructor. config: path of the configuration. s: the session to
 * which the process is attached, or NULL. Returns 1 if the library will start a daemon when one is
 * needed. The caller then need not warn that no daemon serves. */
int monarch_autostart_init(const char *config, const struct session *s);

void monarch_autostart_opened_slow(int fd);
/* Call this after a program has opened a file for reading, if no daemon serves. */
static inline void monarch_autostart_opened(int fd) {
    if (__builtin_expect(__atomic_load_n(&monarch_autostart, __ATOMIC_RELAXED), 0) && fd >= 0)
        monarch_autostart_opened_slow(fd);
}

void monarch_autostart_watch_slow(const struct session *s);
/* Called about once a second while the process uses the session. If the session's daemon was
 * killed, requests the start of another daemon. */
static inline void monarch_autostart_watch(const struct session *s) {
    if (__builtin_expect(__atomic_load_n(&monarch_autostart, __ATOMIC_RELAXED), 0))
        monarch_autostart_watch_slow(s);
}
