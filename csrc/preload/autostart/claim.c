#include "preload/autostart/claim.h"

#include <string.h>
#include <sys/file.h>

#include "preload/process/text.h"
#include "preload/session/segments.h"
#include "shared/sys.h"

/* Maximum number of start times in the session's file `starts`. */
#define STARTS 3
/* In any period of this length [ns], at most STARTS starts are allowed: for example, a first start,
 * and two more after the daemon was killed. */
#define WITHIN_NS 600000000000ULL
/* Shortest time between two starts [ns]. If a start has failed, an immediate second start would
 * usually fail too. */
#define APART_NS 5000000000ULL
/* How long [ns] an unneeded start counts toward the limit STARTS. A start is unneeded if the
 * starter finds that no daemon should be started. The starter then makes the stored time of its
 * start an odd number. All other stored times are even numbers. */
#define UNNEEDED_NS 60000000000ULL

static int is_private(int fd, mode_t type) {
    struct stat st;
    return sys_fstat(fd, &st) == 0 && (st.st_mode & S_IFMT) == type && !(st.st_mode & 077) &&
           st.st_uid == (uid_t)sys6(SYS_geteuid, 0, 0, 0, 0, 0, 0);
}

/* Opens a directory, and creates it if there is none. Fails if other users have access to it. dir:
 * AT_FDCWD, or a descriptor of a directory to which only this user has access. Only with such a
 * descriptor, `path` may be a link, because no other user can have made the link. */
static int open_directory(int dir, const char *path) {
    const int links = dir == AT_FDCWD ? O_NOFOLLOW : 0;
    sys6(SYS_mkdirat, dir, (long)path, 0700, 0, 0, 0);
    int fd = sys_openat(dir, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | links);
    if (fd < 0 || is_private(fd, S_IFDIR))
        return fd;
    sys_close(fd);
    return -1;
}

static int open_file(int dir, const char *name, int flags) {
    const int always = O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    return (int)sys6(SYS_openat, dir, (long)name, flags | always, 0600, 0, 0);
}

static int open_session(void) {
    const char *session = monarch_session_dir(), *name = strrchr(session, '/');
    char user[256];
    size_t n = (size_t)(name - session);
    memcpy(user, session, n);
    user[n] = 0;
    int above = open_directory(AT_FDCWD, user);
    return above < 0 ? -1 : open_directory(above, name + 1);
}

/* Returns the time until which a start counts toward the limit STARTS, or 0 if it does not count.
 * start: the stored time of the start. The clock begins at 0 at each boot. So a time in the future
 * was stored before the last boot, and that start does not count. */
static uint64_t end_of(uint64_t start, uint64_t now) {
    return start > now || !start ? 0 : start + (start & 1 ? UNNEEDED_NS : WITHIN_NS);
}

/* Returns the time until which no start is allowed, or 0 if one is allowed now. Sets *first to the
 * index at which the time of the next start must be stored. */
static uint64_t taken_until(const uint64_t *starts, uint64_t now, int *first) {
    uint64_t until = 0;
    *first = 0;
    for (int i = 1; i < STARTS; i++)
        if (end_of(starts[i], now) < end_of(starts[*first], now))
            *first = i;
    until = end_of(starts[*first], now);
    for (int i = 0; i < STARTS; i++)
        if (end_of(starts[i], now) && !(starts[i] & 1) && starts[i] + APART_NS > until)
            until = starts[i] + APART_NS;
    return until > now ? until : 0;
}

uint64_t monarch_claim_taken_until(void) {
    uint64_t starts[STARTS] = {0}, size;
    int first, fd = monarch_open_segment("starts", O_RDONLY, &size);
    if (fd < 0)
        return 0;
    if (size)
        sys_pread(fd, starts, sizeof starts, 0);
    sys_close(fd);
    return taken_until(starts, monarch_now_ns(), &first);
}

/* Stores the time of this start in the file `fd`. Returns 0 if no start is allowed now. */
static int count_start(int fd) {
    uint64_t starts[STARTS] = {0}, now = monarch_now_ns();
    int first;
    sys_pread(fd, starts, sizeof starts, 0);
    if (taken_until(starts, now, &first))
        return 0;
    starts[first] = now & ~1ULL;
    return sys_pwrite(fd, starts, sizeof starts, 0) == sizeof starts;
}

/* On failure, leaves its descriptors open. The calling process, which was to become the starter,
 * then ends, and the kernel closes them. */
int monarch_claim_start(int *errors) {
    int dir = open_session(), fd = dir < 0 ? -1 : open_file(dir, "starts", O_RDWR);
    if (fd < 0 || !is_private(fd, S_IFREG) ||
        sys6(SYS_flock, fd, LOCK_EX | LOCK_NB, 0, 0, 0, 0) != 0 || !count_start(fd))
        return -1;
    *errors = open_file(dir, "log", O_WRONLY | O_APPEND);
    return fd;
}
