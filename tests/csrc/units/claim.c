#include "preload/autostart/claim.c"

#include "made.h"
#include "preload/session/segments.h"

/* Makes `config` the configuration of this process. Returns the directory of its session, or
 * NULL. */
EXPORT const char *place_of(const char *config) {
    return monarch_find_session_dir(config) ? monarch_session_dir() : NULL;
}
EXPORT uint64_t claim_taken(const uint64_t *starts, uint64_t now, int *first) {
    return taken_until(starts, now, first);
}
EXPORT uint64_t claim_taken_until(void) { return monarch_claim_taken_until(); }
EXPORT int claim_start(int *errors) { return monarch_claim_start(errors); }
EXPORT int claim_starts(void) { return STARTS; }
EXPORT int claim_makes_directory(const char *path) { return open_directory(AT_FDCWD, path); }
