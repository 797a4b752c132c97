/* Paths as the process sees them: its working directory, its directory descriptors. */
#ifndef MONARCH_WHERE_H
#define MONARCH_WHERE_H

#include <fcntl.h>
#include <sys/stat.h>

#include "attributes.h"
#include "path.h"
#include "session.h"

/* What the working directory is to the sources. It saves a getcwd for relative paths far from any
 * source; "near" always asks the kernel, so that a stale answer costs speed only.
 * Changes of directory raise the count above the two low bits. */
enum { MONARCH_CWD_UNKNOWN, MONARCH_CWD_FAR, MONARCH_CWD_NEAR };
extern uint64_t monarch_cwd_is HIDDEN; /* atomic */

/* Nearly all relative paths of programs: no path without `..` leads from there to a source, but by
 * a link, which is not followed here. Asked before anything else. */
static inline int monarch_is_far(int dir, const char *path) {
    return path[0] != '/' && dir == AT_FDCWD &&
           (__atomic_load_n(&monarch_cwd_is, __ATOMIC_ACQUIRE) & 3) == MONARCH_CWD_FAR &&
           !monarch_may_go_up(path);
}

/* Number of the catalog's entry for a path, MONARCH_OUTSIDE or MONARCH_UNKNOWN. For an unknown
 * path, the daemon is told of it if `tell`. *c becomes the catalog that was asked; most processes
 * never need one, and do not map it. */
int64_t monarch_locate(struct session *s, const struct monarch_catalog **c, int dir,
                       const char *path, int follow, int tell);

/* The same in two steps. A plain path, absolute and in a source, is looked up by `hash`. */
struct monarch_aim {
    const struct monarch_catalog *catalog;
    const char *rel; /* the path in the source */
    size_t len;
    uint64_t hash;
    int is_alias;   /* the path is a source's other name, whose end may be a link */
    int64_t likely; /* what monarch_guess says, if it is asked; else -1 */
    int source;     /* -1: an odd path, which takes the slower, exact way */
};
/* 0: the path leads to nothing of ours, as far as can be seen from it. */
int monarch_aim(struct session *s, int dir, const char *path, struct monarch_aim *a);
int64_t monarch_locate_aimed(struct session *s, const struct monarch_aim *a, int dir,
                             const char *path, int follow, int tell);

/* The same as monarch_locate, with the place itself: the path relative to the source, links and
 * dots resolved. */
void monarch_locate_place(struct session *s, const struct monarch_catalog *c, int dir,
                          const char *path, int follow, struct monarch_place *place);

/* The name under which the kernel knows an open file (MONARCH_PATH_MAX bytes); 0 for none. It may
 * have no such name any more. */
int monarch_name_of(int fd, char *out);

int monarch_has_mode_of_copy(unsigned mode);
/* The entry whose copy `st` describes, or NULL; of `st` the device, inode, mode, links, size and
 * time of modification are looked at. *s : the newest session; on return the one that the entry is
 * in, like *c. Descriptors outlive the daemon that made their copies. */
const struct monarch_entry *
monarch_behind_copy(struct session **s, const struct monarch_catalog **c, const struct stat *st);

/* Sends the daemon a path that it does not know. A hint: dropped when there is no room. */
void monarch_mail_path(struct session *s, unsigned source, const char *path, size_t len);
void monarch_ring(struct session *s);

#endif
