#include "preload/promotion/backing.c"

#include "made.h"

EXPORT int backing_note(int fd, int high, int before) {
    monarch_track_mark();
    return note(fd, high, before);
}
EXPORT int backing_is_backing(int fd) { return monarch_is_backing(fd); }
EXPORT int backing_number(int fd) { return backing_of(fd); }
EXPORT void backing_close(int fd) { monarch_backing_close_slow(fd); }
EXPORT void backing_duplicate(int fd, int fresh) { monarch_backing_duplicate_slow(fd, fresh); }
EXPORT uint64_t backing_that_stays(uint64_t from, unsigned first, unsigned last) {
    return monarch_backing_that_stays(from, first, last);
}
EXPORT void backing_close_range(unsigned first, unsigned last) {
    monarch_backing_close_range(first, last);
}
EXPORT void backing_flag_range(unsigned first, unsigned last) {
    monarch_backing_flag_range(first, last);
}
EXPORT void backing_replace(int fd, int fresh, int flags) {
    monarch_backing_replace_slow(fd, fresh, flags);
}
/* Resets the highest number in the table, as if the table had never had an entry. */
EXPORT void backing_forget(void) { highest = 0; }
EXPORT int backing_count(void) { return (int)monarch_backing_count; }
