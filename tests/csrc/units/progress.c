#include "preload/fill/progress.c"

#include "made.h"

EXPORT uint64_t progress_add(struct session *s, uint64_t id, uint64_t n) {
    return monarch_progress(s, id, n);
}
EXPORT uint64_t progress_of(uint64_t id) { return monarch_progress_of(id); }
EXPORT void progress_begin_again(uint64_t id) { monarch_progress_begin_again(id); }
EXPORT void progress_unseen(struct session *s, uint64_t id, uint64_t n) {
    monarch_progress_unseen(s, id, n);
}
/* Forgets the durations of all opens and reads of sources. */
EXPORT void progress_forget(void) { opens = reads = (struct taken){.mean_ns = 0}; }
EXPORT void progress_took(uint64_t open_ns, uint64_t read_ns) {
    monarch_note_source_open(open_ns);
    monarch_note_source_read(read_ns);
}
EXPORT uint64_t progress_latency(void) { return monarch_latency_ns(); }
EXPORT int progress_is_at_hand(void) { return monarch_source_is_at_hand(); }
EXPORT int progress_is_near(void) { return monarch_source_is_near(); }
EXPORT void progress_stream(struct session *s, uint64_t id, uint64_t stream) {
    monarch_progress_stream(s, id, (const FILE *)stream);
}
EXPORT void progress_end(uint64_t stream, int fd) {
    monarch_progress_end((const FILE *)stream, fd);
}
