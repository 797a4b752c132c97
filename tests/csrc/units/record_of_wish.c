#include "preload/autostart/record.c"

#include <stdlib.h>

#include "made.h"

static const char *variable(const char *name) { return getenv(name); }

EXPORT int record_read(char *text, const char *config, uint64_t mounts) {
    const struct monarch_setting now = {config, mounts, variable};
    return monarch_read_record(text, &now);
}
EXPORT int record_has(const char *text, const char *path) { return monarch_record_has(text, path); }
