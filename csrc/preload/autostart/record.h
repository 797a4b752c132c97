/* Records: what starters have found in a configuration. The library reads no YAML. */
#pragma once

#include <stdint.h>

/* All records of a session are smaller; ipc/record.py has the same number [bytes]. */
#define MONARCH_RECORD_BYTES 32768

enum monarch_wish {
    MONARCH_WISH_UNKNOWN, /* there is no record of this setting */
    MONARCH_WISH_NO,
    MONARCH_WISH_YES,
};

/* The setting that a record must have been written for.
 *
 * config : the path of the configuration;  mounts : the inode of our mount namespace
 * value_of : returns the value of an environment variable, or NULL */
struct monarch_setting {
    const char *config;
    uint64_t mounts;
    const char *(*value_of)(const char *name);
};

/* Reads the session's record of this setting into `text` (MONARCH_RECORD_BYTES). */
enum monarch_wish monarch_read_record(char *text, const struct monarch_setting *now);
/* Whether `path`, which has no links and dots, lies below a source of the record. */
int monarch_record_has(const char *text, const char *path);
