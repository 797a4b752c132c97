/* What the kernel says lies at an address: /proc/self/maps. */
#ifndef MONARCH_MAPS_H
#define MONARCH_MAPS_H

#include <stdint.h>

/* The file as the kernel names it there. That is not always what stat says (overlayfs, btrfs), so
 * that it is asked for when a mapping is made and compared with later. */
struct monarch_mapped {
    uint64_t major, minor, ino;
};

/* The file at `at`; 0 if there is none. */
int monarch_mapped_file(uint64_t at, struct monarch_mapped *out);
/* Whether all of [begin, end) is this file from `offset` on, mapped to be read and nothing else. */
int monarch_is_mapped(uint64_t begin, uint64_t end, const struct monarch_mapped *file,
                      uint64_t offset, int shared);

#endif
