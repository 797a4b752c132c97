#include "preload/lookup/cwd.h"

#include "preload/process/calls.h"
#include "shared/sys.h"

static int is_near(const struct monarch_control *k, const char *cwd) {
    size_t n = strlen(cwd) - (cwd[1] == 0);
    for (uint32_t i = 0; i < k->sources; i++) {
        const struct monarch_source *s = &k->source[i];
        if (monarch_is_below(cwd, s->path, s->path_len) || monarch_is_below(s->path, cwd, n))
            return 1;
        if (s->alias_len &&
            (monarch_is_below(cwd, s->alias, s->alias_len) || monarch_is_below(s->alias, cwd, n)))
            return 1;
    }
    return 0;
}

void monarch_find_cwd(const struct session *s) {
    uint64_t seen = __atomic_load_n(&monarch_cwd_is, __ATOMIC_ACQUIRE);
    if ((seen & 3) == MONARCH_CWD_UNKNOWN) {
        char cwd[MONARCH_PATH_MAX];
        int near = sys_getcwd(cwd, sizeof cwd) > 0 && cwd[0] == '/' && is_near(s->control, cwd);
        uint64_t now = (seen & ~3ULL) | (near ? MONARCH_CWD_NEAR : MONARCH_CWD_FAR);
        __atomic_compare_exchange_n(&monarch_cwd_is, &seen, now, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE);
    }
}

PUBLIC int chdir(const char *path) {
    monarch_cwd_may_differ();
    int r = REAL(chdir)(path);
    monarch_cwd_may_differ();
    return r;
}

PUBLIC int fchdir(int fd) {
    monarch_cwd_may_differ();
    int r = REAL(fchdir)(fd);
    monarch_cwd_may_differ();
    return r;
}
