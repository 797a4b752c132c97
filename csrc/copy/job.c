#include "copy/job.h"

#include <errno.h>
#include <unistd.h>

int monarch_fail(struct job *job, int status, int error) {
    job->result.status = (uint32_t)status;
    job->result.error = error;
    return -1;
}

int monarch_tier_status(int error) {
    return error == ENOSPC || error == EDQUOT || error == ENOMEM ? MONARCH_TIER_FULL
                                                                 : MONARCH_TIER_ERROR;
}

void monarch_copy_name(const struct job *job, char name[MONARCH_COPY_NAME + 4]) {
    uint64_t number = job->result.copy;
    for (int i = MONARCH_COPY_NAME; i--; number >>= 4)
        name[i] = "0123456789abcdef"[number & 15];
    name[MONARCH_COPY_NAME] = 0;
}

void monarch_remove_copy(struct job *job) {
    char name[MONARCH_COPY_NAME + 4];
    monarch_copy_name(job, name);
    /* Ignore two errors. ENOENT: the copy was already removed. EISDIR: the name belongs to a
     * directory, which Monarch did not make. */
    if (unlinkat(job->copies, name, 0) != 0 && errno != ENOENT && errno != EISDIR)
        job->result.left = errno;
}
