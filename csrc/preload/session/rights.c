#include "preload/session/rights.h"

#include <errno.h>
#include <linux/capability.h>

#include "shared/sys.h"

static int are_our_users(const struct monarch_control *k) {
    struct stat st;
    return sys_fstatat(AT_FDCWD, "/proc/self/ns/user", &st, 0) == 0 && st.st_ino == k->users;
}

/* --- capabilities ----------------------------------------------------------------------------- */

/* Atomic. Set to 1 when a thread of this process lacks a right that the daemon has; never reset. */
static uint32_t falls_short;

static int may_read_everything(const struct monarch_control *k) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{.effective = 0}};
    const uint32_t mask = 1U << CAP_DAC_OVERRIDE | 1U << CAP_DAC_READ_SEARCH;
    /* Only a capability in the daemon's user namespace counts. The root user of another user
     * namespace cannot read all files. */
    return sys6(SYS_capget, (long)&header, (long)data, 0, 0, 0, 0) == 0 &&
           (data[0].effective & mask) && are_our_users(k);
}

/* --- groups --------------------------------------------------------------------------------------
 * Some files may be read only by one group. If the daemon belongs to this group and a process does
 * not, the process must not read the copies of these files. */

#define FEW 64         /* enough for the groups of nearly all processes */
#define MOST 65536     /* NGROUPS_MAX */
#define UNMAPPED 65534 /* group number that a user namespace shows for groups without a mapping */

/* Returns whether all of the daemon's groups are among the `n` groups. Usually both lists are
 * sorted, so each search begins where the previous search has ended. */
static int has_groups(const struct monarch_control *k, const uint32_t *groups, long n) {
    long at = 0, unmapped = 0, missing = 0;
    for (long i = 0; i < n; i++)
        unmapped += groups[i] == UNMAPPED;
    for (uint32_t i = 0; i < k->groups; i++) {
        long tried = 0;
        for (; tried < n && groups[at] != k->group[i]; tried++)
            at = at + 1 < n ? at + 1 : 0;
        if (tried == n && ++missing > unmapped)
            return 0;
    }
    /* In a container with its own user namespace, a process keeps the groups that it had outside.
     * Most of them have no number in the container, and the kernel shows each of these as
     * UNMAPPED. This function counts each UNMAPPED group as one of the daemon's groups. This is
     * safe, because a process cannot give itself an UNMAPPED group. In the daemon's own user
     * namespace, the process must have all groups of the daemon. */
    return !missing || !are_our_users(k);
}

/* Writes to `groups` the effective group and all supplementary groups. Returns their number, or a
 * negative errno: -EINVAL if there are more than `room` groups. */
static long get_groups(uint32_t *groups, long room) {
    groups[0] = (uint32_t)sys6(SYS_getegid, 0, 0, 0, 0, 0, 0);
    long n = sys6(SYS_getgroups, room - 1, (long)(groups + 1), 0, 0, 0, 0);
    return n < 0 ? n : n + 1;
}

static int has_many_groups(const struct monarch_control *k) {
    const unsigned long bytes = (MOST + 1) * sizeof(uint32_t);
    long n = 0, at = sys6(SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!is_address(at))
        return 0;
    n = get_groups((uint32_t *)at, MOST + 1);
    int has = n > 0 && has_groups(k, (uint32_t *)at, n);
    sys_unmap((void *)at, bytes);
    return has;
}

static int has_daemons_groups(const struct monarch_control *k) {
    uint32_t few[FEW];
    long n = get_groups(few, FEW);
    return k->groups <= MONARCH_MAX_GROUPS &&
           (n == -EINVAL ? has_many_groups(k) : n > 0 && has_groups(k, few, n));
}

/* ---------------------------------------------------------------------------------------------- */

/* Only a process of the daemon's user is checked, because processes of other users cannot open
 * copies. */
int monarch_rights_suffice(const struct session *s) {
    const struct monarch_control *k = s->control;
    if (sys6(SYS_geteuid, 0, 0, 0, 0, 0, 0) == (long)k->owner) {
        if (!k->reads_everything)
            return has_daemons_groups(k);
        if (!may_read_everything(k))
            __atomic_store_n(&falls_short, 1, __ATOMIC_RELAXED);
    }
    return !__atomic_load_n(&falls_short, __ATOMIC_RELAXED);
}
