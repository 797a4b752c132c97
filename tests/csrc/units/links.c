#include "preload/lookup/links.c"

#include "made.h"

/* Begins with an empty table, as if the process had used no link yet. */
EXPORT void links_forget(void) {
    memset(table, 0, sizeof table);
    monarch_links_met = 0;
    monarch_cwd_is = 0;
}
EXPORT int links_are_met(void) { return (int)monarch_links_met; }
EXPORT void links_keep(uint64_t key, int lead, uint64_t prefix) {
    keep(key, (enum monarch_lead)lead, prefix);
}
/* Returns the hint `lead | prefix << 2` of the table's entry with this key, or 0 if there is
 * none. */
EXPORT uint64_t links_find(uint64_t key) {
    uint64_t word = find(key);
    return (uint64_t)LEAD(word) | PREFIX(word) << 2;
}
EXPORT uint64_t links_key(const char *path) { return key_of(path, strlen(path)); }
EXPORT uint64_t links_hint(const char *path) {
    struct monarch_hint hint = monarch_hint_for(path, strlen(path));
    return (uint64_t)hint.lead | hint.prefix << 2;
}
/* Calls is_due `times` times. Returns how often it returned 1. */
EXPORT int links_due(int times) {
    int due = 0;
    while (times--)
        due += is_due();
    return due;
}
EXPORT int64_t links_enter_directory(struct session *s, const char *path, uint64_t prefix) {
    const struct monarch_catalog *c = monarch_catalog_of(s);
    const struct monarch_entry *e = monarch_enter_directory(s, c, path, prefix);
    return e ? e - monarch_entries(c) : -1;
}
EXPORT int64_t links_enter_file(struct session *s, int dir, const char *path, int follow,
                                uint32_t *version) {
    return monarch_enter_file(s, monarch_catalog_of(s), dir, path, follow, version);
}
EXPORT int links_learn_open(struct session *s, const char *path, int fd) {
    return monarch_learn_open(s, path, fd);
}
EXPORT void links_learn_stat(const char *path) {
    struct stat st;
    if (sys_fstatat(AT_FDCWD, path, &st, 0) == 0)
        monarch_learn_stat(path, &st);
}
EXPORT void links_learn_listed(const char *path, int fd) { monarch_learn_listed(path, fd); }
EXPORT void links_move(void) { monarch_cwd_may_differ(); }
