#include "preload/autostart/claim.h"

#include <string.h>
#include <sys/file.h>

#include "preload/process/text.h"
#include "preload/session/segments.h"
#include "shared/sys.h"

/* The file has the times of the last starts. A daemon that was killed is started again twice in
 * WITHIN_NS. If the starter has found that no daemon was to be started, it makes the time odd, and
 * the start counts for a minute only. */
#define STARTS 3
#define WITHIN_NS 600000000000ULL
#define UNNEEDED_NS 60000000000ULL

static int is_private(int fd, mode_t type) {
    struct stat st;
    return sys_fstat(fd, &st) == 0 && (st.st_mode & S_IFMT) == type && !(st.st_mode & 077) &&
           st.st_uid == (uid_t)sys6(SYS_geteuid, 0, 0, 0, 0, 0, 0);
}

/* Opens a directory that is this user's alone, and makes it if there is none. A link may lead to
 * it only where nobody else can make one: in such a directory. */
static int open_directory(int dir, const char *path) {
    const int links = dir == AT_FDCWD ? O_NOFOLLOW : 0;
    sys6(SYS_mkdirat, dir, (long)path, 0700, 0, 0, 0);
    int fd = sys_openat(dir, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | links);
    if (fd < 0 || is_private(fd, S_IFDIR))
        return fd;
    sys_close(fd);
    return -1;
}

static int open_claim(void) {
    const char *session = monarch_session_dir(), *name = strrchr(session, '/');
    char user[256];
    size_t n = (size_t)(name - session);
    memcpy(user, session, n);
    user[n] = 0;
    int above = open_directory(AT_FDCWD, user);
    int dir = above < 0 ? -1 : open_directory(above, name + 1);
    int fd = -1;
    if (dir >= 0)
        fd = (int)sys6(SYS_openat, dir, (long)"starts",
                       O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600, 0, 0);
    if (dir >= 0)
        sys_close(dir);
    if (above >= 0)
        sys_close(above);
    return fd;
}

/* Whether a start counts no more. A time to come is of another boot. */
static int is_over(uint64_t start, uint64_t now) {
    return !start || start > now || now - start >= (start & 1 ? UNNEEDED_NS : WITHIN_NS);
}

/* Writes down this start in the place of one that is over. Returns 0 if there is none. */
static int count_start(int fd) {
    uint64_t starts[STARTS] = {0}, now = monarch_now_ns();
    int i = 0;
    sys_pread(fd, starts, sizeof starts, 0);
    while (i < STARTS && !is_over(starts[i], now))
        i++;
    if (i == STARTS)
        return 0;
    starts[i] = now & ~1ULL;
    return sys_pwrite(fd, starts, sizeof starts, 0) == sizeof starts;
}

int monarch_claim_start(void) {
    int fd = open_claim();
    if (fd < 0)
        return -1;
    if (is_private(fd, S_IFREG) && sys6(SYS_flock, fd, LOCK_EX | LOCK_NB, 0, 0, 0, 0) == 0 &&
        count_start(fd))
        return fd;
    sys_close(fd);
    return -1;
}
