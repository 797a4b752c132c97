/* Writes one line to standard error, to explain why all reads go to the source. */
#include <stdlib.h>
#include <string.h>

#include "preload/process/log.h"
#include "preload/process/text.h"
#include "preload/session/session.h"
#include "shared/sys.h"

/* Name of an environment variable that is set after the warning was written. Child processes and
 * executed programs inherit the variable, and do not repeat the warning. */
#define SAID "MONARCH_WARNED"

static struct stat stderr_at_load;
static int warned, said;

__attribute__((constructor(101))) static void remember_stderr(void) {
    if (sys_fstat(2, &stderr_at_load) != 0)
        stderr_at_load.st_ino = 0;
}

static int stderr_is_what_it_was(void) {
    struct stat now;
    return stderr_at_load.st_ino && sys_fstat(2, &now) == 0 &&
           now.st_dev == stderr_at_load.st_dev && now.st_ino == stderr_at_load.st_ino &&
           now.st_rdev == stderr_at_load.st_rdev;
}

/* The environment of the parent process is read in parts of this many bytes. The parts are small,
 * because the stack may be small. */
#define PART_BYTES 1024

/* Returns whether the parent process has probably written the warning already, so that the warning
 * appears only once in a job of many processes. This is assumed if the parent runs with the library
 * too: if its environment names the library and a configuration. */
__attribute__((noinline)) static int parent_has_warned(void) {
    static const char *const wanted[] = {"MONARCH_CONFIG=", "libmonarch"};
    char path[32], buf[PART_BYTES + 32];
    long ppid = sys6(SYS_getppid, 0, 0, 0, 0, 0, 0), n, kept = 0;
    int seen[2] = {0, 0};
    put(put_number(put(path, "/proc/"), (uint64_t)ppid, 10, 1), "/environ");
    int fd = sys_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    while ((n = sys_read(fd, buf + kept, PART_BYTES)) > 0) {
        n += kept;
        for (int w = 0; w < 2; w++)
            seen[w] |= memmem(buf, (size_t)n, wanted[w], strlen(wanted[w])) != NULL;
        kept = n < 16 ? n : 16;
        memmove(buf, buf + n - kept, (size_t)kept);
    }
    sys_close(fd);
    return seen[0] && seen[1];
}

void monarch_warn(const char *what, const char *name, const char *hint) {
    char line[1200] = "monarch: ";
    const char *parts[] = {what, " ", name, "; all reads go to the source. ", hint, "\n"};
    size_t n = strlen(line);
    monarch_log(what, name, hint);
    if (__atomic_exchange_n(&warned, 1, __ATOMIC_RELAXED) || secure_getenv(SAID) ||
        !stderr_is_what_it_was() || parent_has_warned())
        return;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t len = strlen(parts[i]);
        if (n + len >= sizeof line)
            len = sizeof line - 1 - n;
        memcpy(line + n, parts[i], len);
        n += len;
    }
    sys_write(2, line, n);
    said = 1;
}

void monarch_pass_warning_on(void) {
    if (said)
        setenv(SAID, "1", 0);
}
