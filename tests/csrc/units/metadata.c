#include "preload/lookup/metadata.c"

#include "made.h"

static struct monarch_known known_of(struct session *s, uint64_t id) {
    return (struct monarch_known){
        .session = s, .catalog = s->catalog, .entry = &monarch_entries(s->catalog)[id]};
}
EXPORT int metadata_can_tell(struct session *s, uint64_t id) {
    struct monarch_known k = known_of(s, id);
    return monarch_can_tell(&k);
}
EXPORT uint64_t metadata_listing(struct session *s, uint64_t id) {
    struct monarch_known k = known_of(s, id);
    return monarch_listing_of(&k);
}
EXPORT uint64_t metadata_look_and_list(struct session *s, uint64_t id, const char *path) {
    struct monarch_known k = known_of(s, id);
    return monarch_look_and_list(&k, AT_FDCWD, path);
}
EXPORT void metadata_keep_look(struct session *s, uint64_t id, uint64_t ago_ns) {
    struct monarch_known k = known_of(s, id);
    keep_look(&k, monarch_now_ns() - ago_ns);
}
EXPORT int metadata_is_fresh(struct session *s) { return monarch_is_fresh(s); }
