/* Reads the session's records, in which a starter has stored facts about the configuration.
 *
 * The library cannot read YAML. So the starter, which is the program that starts a daemon, reads
 * the configuration. It writes a record of the facts that the library needs: the sources, and
 * whether a daemon is to be started. */
#pragma once

#include <stdint.h>

/* The file with all records of a session is smaller than this [bytes]; ipc/record.py defines the
 * same limit. */
#define MONARCH_RECORD_BYTES 32768

enum monarch_wish {
    MONARCH_WISH_UNKNOWN, /* there is no record for this setting */
    MONARCH_WISH_NO,
    MONARCH_WISH_YES,
};

/* The setting of this process: the facts on which a record depends. The library uses a record only
 * if it was written in the same setting.
 *
 * config : path of the configuration
 * mounts : inode of the process's mount namespace
 * value_of : returns the value of an environment variable, or NULL */
struct monarch_setting {
    const char *config;
    uint64_t mounts;
    const char *(*value_of)(const char *name);
};

/* Finds the session's record for the setting `now`, and stores it in `text` (MONARCH_RECORD_BYTES
 * bytes). Returns the user's wish in the record, or MONARCH_WISH_UNKNOWN if there is no record for
 * this setting. */
enum monarch_wish monarch_read_record(char *text, const struct monarch_setting *now);
/* Returns whether `path` is below a source of the record. `path` must contain no links and no
 * components `.` or `..`. */
int monarch_record_has(const char *text, const char *path);
