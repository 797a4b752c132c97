/* The digest of a dataset: a sum over its files, so that the digest does not depend on the order in
 * which a scan found them. */
#include "plan/plan.h"
#include "shared/xxh3.h"

void monarch_plan_digest(const char *pool, const uint64_t *starts, const uint64_t *sizes,
                         uint64_t n, uint64_t *sum) {
    for (uint64_t i = 0; i < n; i++) {
        /* The first hash covers the hash of the file's name and the file's size. The second hash
         * also covers the first hash. So if two datasets have the same sum[0] by accident, their
         * sum[1] very probably differs. */
        uint64_t mixed[3] = {monarch_xxh3(pool + starts[i], starts[i + 1] - starts[i]), sizes[i],
                             0};
        uint64_t first = monarch_xxh3(mixed, sizeof mixed);
        mixed[2] = first;
        sum[0] += first;
        sum[1] += monarch_xxh3(mixed, sizeof mixed);
    }
}
