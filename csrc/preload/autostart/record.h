/* Reads the session's records. The library cannot read YAML itself. So a starter reads the
 * configuration, and writes a record with the facts that the library needs. */
#pragma once

#include <stdint.h>

/* The file with all records of a session is always smaller than this [bytes]; ipc/record.py defines
 * the same limit. */
#define MONARCH_RECORD_BYTES 32768

enum monarch_wish {
    MONARCH_WISH_UNKNOWN, /* there is no record for this setting */
    MONARCH_WISH_NO,
    MONARCH_WISH_YES,
};

/* The setting of this process. A record counts only if it was written in the same setting.
 *
 * config : path of the configuration
 * mounts : inode of the process's mount namespace
 * value_of : returns the value of an environment variable, or NULL */
struct monarch_setting {
    const char *config;
    uint64_t mounts;
    const char *(*value_of)(const char *name);
};

/* Reads the session's record for this setting into `text` (MONARCH_RECORD_BYTES bytes). Returns the
 * record's wish, which tells whether a daemon is to be started. */
enum monarch_wish monarch_read_record(char *text, const struct monarch_setting *now);
/* Returns whether `path` is below a source of the record. `path` must contain no links and no
 * components `.` or `..`. */
int monarch_record_has(const char *text, const char *path);
