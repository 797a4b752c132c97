/* Maps a session's segments, and releases those of daemons that have ended. */
#pragma once

#include "preload/session/session.h"

/* Computes the path of the session's directory from the configuration's path. Returns 0 if the
 * configuration does not exist. */
int monarch_find_session_dir(const char *config);
const char *monarch_session_dir(void);
/* Whether the last daemon of the session was stopped by a user. */
int monarch_was_stopped(void);

struct monarch_segment {
    const void *map;
    uint64_t size, dev, ino;
};
/* Maps a whole segment for reading. Returns 0 if there is none, or if it is not this user's
 * alone. */
int monarch_map_segment(const char *name, struct monarch_segment *out);

/* Opens a segment. Returns its descriptor, or -errno. *size is 0 if the segment is empty or not
 * this user's alone. */
int monarch_open_segment(const char *name, int flags, uint64_t *size);

/* Whether a daemon of our version serves, and the counts and lengths in its segment `control` are
 * within their bounds. */
int monarch_control_is_usable(const struct monarch_control *k, uint64_t size);

/* Whether the name `control` still leads to the segment that the session has mapped. It no longer
 * does once somebody has removed the session's directory; from then on, nothing tells us when the
 * daemon ends. */
int monarch_is_linked(const struct session *s);

/* Segments whose size is the same in every session, so that their addresses can be reused. */
enum monarch_range { MONARCH_RANGE_CLIENTS, MONARCH_RANGE_FILLS, MONARCH_RANGES };
/* Maps one of these segments. Returns NULL on failure. *reused becomes 1 if an earlier session used
 * the address; then other threads may still use it. */
void *monarch_map_range(enum monarch_range kind, int *reused);
/* Unmaps a range that no other thread of this session has seen. With reused = 1, clears the range
 * instead, because threads of an earlier session may still use it, and keeps the address for a
 * later session. */
void monarch_discard_range(enum monarch_range kind, void *at, int reused);

/* Maps zeros over all segments of the session. They are not unmapped, because a thread that has
 * hung in a call may still read or count there. That thread then finds no file, no tier and no
 * daemon. */
void monarch_release_session(struct session *s);
