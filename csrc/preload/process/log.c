#include "preload/process/log.h"

#include <stdlib.h>
#include <strings.h>

#include "preload/process/attributes.h"
#include "preload/process/text.h"
#include "shared/sys.h"

#define DIRECTORY_BYTES 512
#define NAME_BYTES 1024 /* the log shows at most this many bytes of a path */

int monarch_logging;
static char directory[DIRECTORY_BYTES] SELDOM;

void monarch_log_init(void) {
    const char *level = secure_getenv("MONARCH_LOG"), *place = secure_getenv("MONARCH_LOG_DIR");
    if (!level || strcasecmp(level, "debug") != 0)
        return;
    if (!place || !*place)
        place = "/tmp";
    if (strlen(place) >= DIRECTORY_BYTES - 64)
        return;
    put(directory, place);
    monarch_logging = 1;
}

/* Opens the log for one line. The caller closes it after the line, so that no descriptor stays
 * open. A single write with O_APPEND writes each line, so the lines of several threads are never
 * mixed. The file's name contains the pid, so a forked child writes to a file of its own. */
static int open_log(void) {
    char path[DIRECTORY_BYTES];
    struct stat st;
    put(put_number(put(put(path, directory), "/monarch-"), (uint64_t)sys_getpid(), 10, 1), ".log");
    int fd =
        (int)sys6(SYS_openat, AT_FDCWD, (long)path,
                  O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600, 0, 0);
    if (fd >= 0 && (sys_fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) ||
                    st.st_uid != (uid_t)sys6(SYS_geteuid, 0, 0, 0, 0, 0, 0))) {
        sys_close(fd); /* another user's file */
        return -1;
    }
    return fd;
}

__attribute__((noinline)) void monarch_log_slow(const char *what, const char *name,
                                                const char *outcome) {
    char line[2 * NAME_BYTES + 256], *at = line;
    uint64_t now = monarch_now_ns();
    int fd = open_log();
    if (fd < 0)
        return;
    at = put_number(at, now / 1000000000, 10, 1);
    at = put_number(put(at, "."), now / 1000 % 1000000, 10, 6);
    at = put_number(put(at, " "), (uint64_t)sys6(SYS_gettid, 0, 0, 0, 0, 0, 0), 10, 1);
    at = put(put(at, " "), what);
    if (name) {
        size_t n = strnlen(name, NAME_BYTES);
        at = put(at, " ");
        memcpy(at, name, n);
        at += n;
        *at = 0;
    }
    if (outcome && strlen(outcome) < NAME_BYTES)
        at = put(put(at, ": "), outcome);
    at = put(at, "\n");
    sys_write(fd, line, (unsigned long)(at - line));
    sys_close(fd);
}
