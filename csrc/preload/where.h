/* Paths as the process sees them: its working directory, its directory descriptors. */
#ifndef MONARCH_WHERE_H
#define MONARCH_WHERE_H

#include <sys/stat.h>

#include "path.h"
#include "session.h"

/* Number of the catalog's entry for a path, MONARCH_OUTSIDE or MONARCH_UNKNOWN. `c` is the catalog
 * that was asked. For an unknown path, the daemon is told of it if `tell`. */
int64_t monarch_locate(struct session *s, const struct monarch_catalog *c, int dir,
                       const char *path, int follow, int tell);

/* The same, with the place itself: the path relative to the source, links and dots resolved. */
void monarch_locate_place(struct session *s, const struct monarch_catalog *c, int dir,
                          const char *path, int follow, struct monarch_place *place);

/* The name under which the kernel knows an open file (MONARCH_PATH_MAX bytes); 0 for none. It may
 * have no such name any more. */
int monarch_name_of(int fd, char *out);

/* The entry whose copy `st` describes, or NULL. *s : the newest session; on return the one that the
 * entry is in, like *c. Descriptors outlive the daemon that made their copies. */
const struct monarch_entry *
monarch_behind_copy(struct session **s, const struct monarch_catalog **c, const struct stat *st);

/* Sends the daemon a path that it does not know. A hint: dropped when there is no room. */
void monarch_mail_path(struct session *s, unsigned source, const char *path, size_t len);
void monarch_ring(struct session *s);

#endif
