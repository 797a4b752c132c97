/* Runs a scan to its end. */
#pragma once

#include <time.h>

#include "native.h"

/* Waits until the scan has ended, but for at most about 10 s. Returns whether it has ended. Stores
 * in *entries how many entries the scan has found. */
static int scan_to_end(struct monarch_scan *s, uint64_t *entries) {
    struct timespec pause = {0, 1000000};
    int finished = 0;
    *entries = 0;
    monarch_scan_allow(s, -1, -1);
    for (int i = 0; !finished && i < 10000; i++) {
        struct monarch_batch *b = monarch_scan_take(s, &finished);
        if (b)
            *entries += b->count;
        else
            nanosleep(&pause, NULL);
        monarch_batch_free(b);
    }
    return finished;
}
