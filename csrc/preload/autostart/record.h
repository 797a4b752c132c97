/* What the starter has written down of a configuration, so that the library need not read YAML. */
#pragma once

#include <stdint.h>

#define MONARCH_RECORD_BYTES 32768

enum monarch_wish {
    MONARCH_WISH_UNKNOWN, /* there is no record, or it is of another configuration */
    MONARCH_WISH_NO,
    MONARCH_WISH_YES,
};

/* Reads the session's record into `text` (MONARCH_RECORD_BYTES). `mounts` is the inode of our mount
 * namespace. `value_of` returns the value of an environment variable, or NULL. */
enum monarch_wish monarch_read_record(char *text, uint64_t mounts,
                                      const char *(*value_of)(const char *name));
/* Whether `path`, which has no links and dots, lies below a source of the record. */
int monarch_record_has(const char *text, const char *path);
