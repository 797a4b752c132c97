/* Asks the kernel, through /proc/self/maps, what is mapped at an address. */
#pragma once

#include <stdint.h>

/* A file as /proc/self/maps identifies it. stat may identify it differently (overlayfs, btrfs), so
 * the identity is read when a mapping is made, and compared later. */
struct monarch_mapped {
    uint64_t major, minor, ino;
};

/* Finds the file that is mapped at `at`. Returns 0 if there is none. */
int monarch_mapped_file(uint64_t at, struct monarch_mapped *out);
/* Whether all of [begin, end) maps this file from `offset` on, for reading only. The mapping must
 * be MAP_SHARED if `shared` is 1, and MAP_PRIVATE if it is 0. */
int monarch_is_mapped(uint64_t begin, uint64_t end, const struct monarch_mapped *file,
                      uint64_t offset, int shared);
