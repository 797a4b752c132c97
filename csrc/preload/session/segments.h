/* Mapping a session's segments, and letting go of those of daemons that have ended. */
#ifndef MONARCH_SEGMENTS_H
#define MONARCH_SEGMENTS_H

#include "preload/session/session.h"

/* Finds the session's directory; 0 if MONARCH_CONFIG names no file. */
int monarch_find_session_dir(const char *config);
const char *monarch_session_dir(void);
/* Whether the last daemon of the session ended because somebody stopped it. */
int monarch_was_stopped(void);

struct monarch_segment {
    const void *map;
    uint64_t size, dev, ino;
};
/* Maps a segment whole, for reading; 0 if it is not there or not ours alone. */
int monarch_map_segment(const char *name, struct monarch_segment *out);

/* A descriptor of one; *size is 0 if it is empty or not ours alone. -errno. */
int monarch_open_segment(const char *name, int flags, uint64_t *size);

/* Whether a daemon of this version serves, and nothing in its segment would lead us astray. */
int monarch_control_is_usable(const struct monarch_control *k, uint64_t size);

/* Whether the name `control` still leads to the segment that the session has mapped. It does not
 * after somebody has removed the session's directory: then nobody tells us that the daemon ends. */
int monarch_is_linked(const struct session *s);

/* Segments that have the same size in every session, so that their addresses are used again. */
enum monarch_range { MONARCH_RANGE_CLIENTS, MONARCH_RANGE_FILLS, MONARCH_RANGES };
/* NULL if it cannot be had. *reused: other threads may still know the address. */
void *monarch_map_range(enum monarch_range kind, int *reused);
/* For a range that no other thread has seen, unless it was reused. */
void monarch_discard_range(enum monarch_range kind, void *at, int reused);

/* Replaces all that the session has mapped with zeros, in place: a thread that has hung in a call
 * since may still read there, or count. It then finds no file, no tier and no daemon. */
void monarch_release_session(struct session *s);

#endif
