#define _GNU_SOURCE
#include "offset.h"

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
    int is_held = monarch_track_hold(fd, 0, &held); /* another thread may follow it no more */
    if (monarch_is_still(fd, w->session, w->entry))
        sys_lseek(fd, -n, SEEK_CUR);
    if (is_held)
        monarch_track_release(fd, &held, held.word);
}
