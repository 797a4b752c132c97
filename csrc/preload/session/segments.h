/* Maps a session's segments, and releases those of daemons that have ended. */
#pragma once

#include "preload/session/session.h"

/* Finds the session's directory from the configuration's path; 0 if MONARCH_CONFIG names no
 * file. */
int monarch_find_session_dir(const char *config);
const char *monarch_session_dir(void);
/* Whether the last daemon of the session was stopped by a user. */
int monarch_was_stopped(void);

struct monarch_segment {
    const void *map;
    uint64_t size, dev, ino;
};
/* Maps a whole segment for reading; 0 if there is none, or it is not ours alone. */
int monarch_map_segment(const char *name, struct monarch_segment *out);

/* Opens a segment; -errno on failure. *size is 0 if it is empty or not ours alone. */
int monarch_open_segment(const char *name, int flags, uint64_t *size);

/* Whether a daemon of this version serves, and no field of its segment would lead us astray. */
int monarch_control_is_usable(const struct monarch_control *k, uint64_t size);

/* Whether the name `control` still leads to the segment that the session has mapped. It does not
 * after somebody has removed the session's directory: then nobody tells us when the daemon ends. */
int monarch_is_linked(const struct session *s);

/* Segments that have the same size in every session, so that their addresses are reused. */
enum monarch_range { MONARCH_RANGE_CLIENTS, MONARCH_RANGE_FILLS, MONARCH_RANGES };
/* Maps such a segment; NULL on failure. *reused: other threads may still know the address. */
void *monarch_map_range(enum monarch_range kind, int *reused);
/* Gives back a range that no other thread has seen. A reused range is cleared and kept instead. */
void monarch_discard_range(enum monarch_range kind, void *at, int reused);

/* Maps zeros over all that the session has mapped: a thread that has hung in a call since may still
 * read there, or count. It then finds no file, no tier and no daemon. */
void monarch_release_session(struct session *s);
