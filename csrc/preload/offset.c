#define _GNU_SOURCE
#include "offset.h"

#include <fcntl.h>

#include "posix_locks.h"
#include "promote.h"
#include "sys.h"
#include "track.h"

/* The number is held between the look at whose it is and the move: who puts another file there
 * waits for these few moments, or that file's offset would be the one that moves. */

int monarch_claim_offset(int fd, struct monarch_wanted *w, size_t n) {
    struct monarch_held held;
    long end = -1; /* beyond the largest offset, or none can be set */
    w->n = 0;
    if (!monarch_track_hold(fd, 0, &held))
        return 0;
    if (monarch_track_session(held.word) == w->session && monarch_track_entry(held.word) == w->id)
        end = sys_lseek(fd, (long)n, SEEK_CUR); /* atomic also for those whose table is another */
    if (end >= 0) {
        w->at = (uint64_t)end - n;
        uint64_t left = w->at < w->entry->size ? w->entry->size - w->at : 0;
        w->n = n < left ? n : left;
        if (w->n < n)
            sys_lseek(fd, (long)w->n - (long)n, SEEK_CUR);
    }
    monarch_track_release(fd, &held, held.word);
    return w->n > 0;
}

void monarch_give_back_offset(int fd, const struct monarch_wanted *w, long n) {
    struct monarch_held held;
    if (!n)
        return;
    /* Another thread may follow it no more, or put another file there just now: a descriptor of our
     * own is of one file, whatever becomes of the number. */
    int is_held = monarch_track_hold(fd, 0, &held);
    int own = is_held ? -1 : sys_fcntl(fd, F_DUPFD_CLOEXEC, 0), at = own < 0 ? fd : own;
    if (monarch_is_still(at, w->session, w->entry))
        sys_lseek(at, -n, SEEK_CUR);
    if (own >= 0)
        monarch_close_unseen(own, fd);
    if (is_held)
        monarch_track_release(fd, &held, held.word);
}
