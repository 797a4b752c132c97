/* The parts of csrc/shared that the daemon's Python does not call. */
#include "made.h"
#include "preload/process/text.h"
#include "shared/bytes.h"
#include "shared/claims.h"
#include "shared/joining.h"
#include "shared/pace.h"
#include "shared/sys.h"

EXPORT int shared_same_bytes(const char *a, const char *b, uint64_t n) {
    return same_bytes(a, b, n);
}
EXPORT int shared_number(char *out, uint64_t v, unsigned base, int digits) {
    return (int)(put_number(out, v, base, digits) - out);
}
EXPORT void claims_file(struct session *s, uint64_t id) { monarch_claim_file(s->clients, id); }
EXPORT uint64_t claims_begin(struct session *s, uint64_t id) {
    return monarch_begin_claim(s->clients, id);
}
EXPORT void claims_cancel(struct session *s, uint64_t id, uint64_t claim) {
    monarch_cancel_claim(s->clients, id, claim);
}
EXPORT void claims_give_up(struct session *s, uint64_t id) {
    monarch_give_up_claim(s->clients, id);
}
EXPORT void claims_end(struct session *s, uint64_t id) { monarch_end_claim(s->clients, id); }
EXPORT int claims_is_being_read(struct session *s, uint64_t id, uint64_t ino, uint64_t now_ns) {
    return monarch_is_being_read(s->clients, id, ino, now_ns);
}
EXPORT int claims_is_recalled(struct session *s, uint64_t id, uint64_t now_ns) {
    return monarch_is_recalled(s->clients, id, now_ns);
}
EXPORT int claims_is_in_transit(uint64_t claim, uint64_t now_ns) {
    return monarch_is_in_transit(claim, now_ns);
}
EXPORT uint64_t claims_of(uint64_t id, uint64_t flag, uint64_t now_ns) {
    return monarch_claim_of(id, flag, now_ns);
}
EXPORT uint64_t claims_unmet(uint64_t ino) { return monarch_unmet(ino); }
EXPORT uint64_t shared_now(void) { return monarch_now_ns(); }
EXPORT uint64_t shared_unit_of(uint64_t size, uint64_t block) {
    return monarch_unit_of(size, block);
}
EXPORT uint64_t shared_map_aligned(int fd, uint64_t n, uint64_t align) {
    return (uint64_t)sys_map_aligned(fd, n, PROT_READ, align);
}
EXPORT void shared_unmap(uint64_t at, uint64_t n) { sys_unmap((void *)at, n); }
EXPORT int shared_keep_pace(uint64_t *pace, uint64_t until_ns) {
    return monarch_keep_pace((struct monarch_pace *)pace, until_ns);
}
/* Returns the time from now to monarch_join_limit(limit_ms) [ns], or -1 if its tv_nsec is
 * invalid. */
EXPORT int64_t shared_join_limit(int limit_ms) {
    struct timespec now, until;
    clock_gettime(CLOCK_REALTIME, &now);
    until = monarch_join_limit(limit_ms);
    return until.tv_nsec >= 0 && until.tv_nsec < 1000000000
               ? (until.tv_sec - now.tv_sec) * 1000000000 + until.tv_nsec - now.tv_nsec
               : -1;
}
