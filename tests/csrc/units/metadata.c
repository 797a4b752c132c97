#include "preload/lookup/metadata.h"
#include "shared/sys.h"

/* Called during a look at the source. Performs the action that metadata_meanwhile has set. */
static void act(void);
#define sys6(call, ...) ((call) == SYS_statx ? act() : (void)0, sys6(call, __VA_ARGS__))
#include "preload/lookup/metadata.c"
#undef sys6

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
static struct {
    struct session *session;
    struct monarch_entry *entry;
    int what;
} meanwhile;
static void act(void) {
    struct monarch_entry *e = meanwhile.entry;
    if (meanwhile.what == 1)
        e->version += 2;
    else if (meanwhile.what == 2)
        monarch_mark_changed(meanwhile.session->clients,
                             meanwhile.session->control->source[e->source].dev, e->ino);
    else if (meanwhile.what == 3)
        e->copy_ino++;
    meanwhile.what = 0;
}
/* Acts as the daemon during the next look at the source. what: the action of the daemon. 0: none;
 * 1: it replaces the entry's attributes; 2: it marks the directory as changed; 3: it replaces the
 * directory's listing. */
EXPORT void metadata_meanwhile(struct session *s, uint64_t id, int what) {
    meanwhile.session = s;
    meanwhile.entry = (struct monarch_entry *)&monarch_entries(s->catalog)[id];
    meanwhile.what = what;
}
