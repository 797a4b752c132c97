/* Maps a session's segments, and releases the segments of daemons that have ended. */
#pragma once

#include "preload/session/session.h"

/* Derives the path of the session's directory from the path of the configuration. Returns 0 if the
 * configuration does not exist. */
int monarch_find_session_dir(const char *config);
const char *monarch_session_dir(void);
/* Returns whether the session's last daemon has shut down properly, for example after `monarch
 * stop`. Returns 0 if the daemon was killed. */
int monarch_was_stopped(void);

struct monarch_segment {
    const void *map;
    uint64_t size, dev, ino;
};
/* Maps a complete segment for reading. Returns 0 if the segment does not exist, or if other users
 * can access it. */
int monarch_map_segment(const char *name, struct monarch_segment *out);

/* Opens a segment. Returns its descriptor, or -errno. *size is 0 if the segment is empty, or if
 * other users can access it. */
int monarch_open_segment(const char *name, int flags, uint64_t *size);

/* Returns whether *k, the segment `control`, belongs to a serving daemon of this library's version,
 * and has valid counts and lengths. size: the size of the segment. */
int monarch_control_is_usable(const struct monarch_control *k, uint64_t size);

/* Returns whether the name `control` in the session's directory still leads to the segment that
 * this process has mapped. If not, for example because the directory was removed, the mapped
 * segment no longer shows whether the daemon has ended. */
int monarch_is_linked(const struct session *s);

/* Kinds of segments that have the same size in every session, so that their addresses can be
 * reused. */
enum monarch_range { MONARCH_RANGE_CLIENTS, MONARCH_RANGE_FILLS, MONARCH_RANGES };
/* Maps the segment of this kind. Returns its address, or NULL on failure. Sets *reused to 1 if an
 * earlier session used the same address; other threads may then still access it. */
void *monarch_map_range(enum monarch_range kind, int *reused);
/* Releases the segment at the address `at`. If `reused` is 0, no other thread accesses the
 * address, and the segment is unmapped. If `reused` is 1, other threads may still access the
 * address. Zeros are then mapped over the segment, and the address is kept for a later session. */
void monarch_discard_range(enum monarch_range kind, void *at, int reused);

/* Maps zeros over all segments of the session. Does not unmap them, because a thread that hangs in
 * a call may still read them or change counters in them. For such a thread, the zeros mean that
 * the session has no files, no tiers and no daemon. */
void monarch_release_session(struct session *s);
