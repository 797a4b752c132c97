#include "preload/process/maps.c"

#include "made.h"

/* Returns the inode of the file that is mapped at `at`, or 0. */
EXPORT uint64_t maps_file(uint64_t at) {
    struct monarch_mapped file;
    return monarch_mapped_file(at, &file) ? file.ino : 0;
}
/* Returns whether [begin, end) is mapped from the file that is mapped at `like`. */
EXPORT int maps_is_mapped(uint64_t begin, uint64_t end, uint64_t like, uint64_t offset,
                          int shared) {
    struct monarch_mapped file;
    return monarch_mapped_file(like, &file) && monarch_is_mapped(begin, end, &file, offset, shared);
}
