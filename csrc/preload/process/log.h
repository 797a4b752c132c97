/* Logs the library's decisions if MONARCH_LOG is `debug`. Each process has a log file of its
 * own. */
#pragma once

extern int monarch_logging;

void monarch_log_slow(const char *what, const char *name, const char *outcome);
/* Logs one line. `name` is a path or NULL. If logging is off, the function only loads
 * monarch_logging. */
static inline void monarch_log(const char *what, const char *name, const char *outcome) {
    if (__builtin_expect(monarch_logging, 0))
        monarch_log_slow(what, name, outcome);
}
/* Reads MONARCH_LOG and MONARCH_LOG_DIR. Call this in the constructor. */
void monarch_log_init(void);
