/* Finds out from /proc/self/maps what is mapped at an address. */
#pragma once

#include <stdint.h>

/* The device and inode numbers that /proc/self/maps shows for a file. Compare them only with
 * numbers from /proc/self/maps: on overlayfs and btrfs, stat may return other numbers for the same
 * file. */
struct monarch_mapped {
    uint64_t major, minor, ino;
};

/* Finds the file that is mapped at `at`. Returns 0 if there is none. */
int monarch_mapped_file(uint64_t at, struct monarch_mapped *out);
/* Returns whether the whole range [begin, end) maps this file from `offset` on, for reading only.
 * shared: 1 for a MAP_SHARED mapping, 0 for a MAP_PRIVATE mapping. */
int monarch_is_mapped(uint64_t begin, uint64_t end, const struct monarch_mapped *file,
                      uint64_t offset, int shared);
