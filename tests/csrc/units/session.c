#include "preload/session/session.c"

#include "made.h"

EXPORT unsigned session_rank_number(const char *text) { return number_of(text); }
EXPORT unsigned session_rank(void) {
    monarch_rank = 0;
    monarch_rank_init();
    return monarch_rank;
}
EXPORT int session_source_on(struct session *s, uint64_t dev, int from) {
    return monarch_source_on(s, dev, from);
}
EXPORT int session_tier_on(struct session *s, uint64_t dev, int from) {
    return monarch_tier_on(s, dev, from);
}
EXPORT int session_hint(struct session *s, unsigned source, const char *path, uint64_t len,
                        int is_part) {
    int may = monarch_may_hint_scan(s);
    monarch_hint_scan(s, source, path, len, is_part);
    return may;
}
EXPORT int session_is_at(struct session *s, unsigned number) {
    return monarch_session_at(number) == s;
}
