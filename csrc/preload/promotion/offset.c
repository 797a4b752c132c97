#include "preload/promotion/offset.h"

#include "preload/descriptors/track.h"

int monarch_claim_offset(int fd, uint64_t tracked, struct monarch_wanted *w, size_t n) {
    /* The result is -1 beyond the largest offset too. The move is atomic also for those that share
     * the offset through another table of descriptors. */
    long end = monarch_track_seek(fd, tracked, (long)n);
    w->n = 0;
    if (end < 0)
        return 0;
    w->at = (uint64_t)end - n;
    uint64_t left = w->at < w->entry->size ? w->entry->size - w->at : 0;
    w->n = n < left ? n : left;
    monarch_give_back_offset(fd, tracked, (long)(n - w->n));
    return w->n > 0;
}

void monarch_give_back_offset(int fd, uint64_t tracked, long n) {
    if (n)
        monarch_track_seek(fd, tracked, -n);
}
