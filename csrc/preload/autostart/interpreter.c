#include "preload/autostart/interpreter.h"

#include <string.h>
#include <unistd.h>

#include "preload/process/calls.h"
#include "preload/process/text.h"
#include "shared/sys.h"

/* Removes the last component from the path. Returns that component, or NULL if there is none. */
static char *cut(char *path) {
    char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return NULL;
    *slash = 0;
    return slash + 1;
}

/* Returns whether the file can be the interpreter. `path` may come from the first line of a script
 * that pip has written. If the interpreter's path is too long for that line, pip writes /bin/sh
 * instead. So the name is checked. */
static int is_interpreter(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return path[0] == '/' && (strncmp(name, "python", 6) == 0 || strncmp(name, "pypy", 4) == 0) &&
           sys6(SYS_faccessat, AT_FDCWD, (long)path, X_OK, 0, 0, 0) == 0;
}

/* Reads into `out` the path that follows `prefix` in the first line of a file. Returns whether it
 * is the path of an interpreter. */
static int read_path(const char *file, const char *prefix, char *out) {
    size_t n = strlen(prefix);
    int fd = sys_openat(AT_FDCWD, file, O_RDONLY | O_CLOEXEC);
    long got = fd < 0 ? -1 : sys_pread(fd, out, MONARCH_PATH_MAX - 1, 0);
    if (fd >= 0)
        sys_close(fd);
    if (got < (long)n || memcmp(out, prefix, n) != 0)
        return 0;
    out[got] = 0;
    memmove(out, out + n, (size_t)got - n + 1);
    out[strcspn(out, "\n")] = 0;
    return is_interpreter(out);
}

/* Finds the interpreter if `packages` is PREFIX/lib/pythonX.Y/site-packages. The first line of the
 * script PREFIX/bin/monarch, which pip has written, names the interpreter. If there is no
 * interpreter at that path, for example because the environment was moved, uses
 * PREFIX/bin/pythonX.Y. */
static int find_beside(char *python, const char *packages) {
    char place[MONARCH_PATH_MAX];
    const char *version;
    put(place, packages);
    if (!cut(place) || !(version = cut(place)) || !cut(place) || strncmp(version, "python", 6) != 0)
        return 0;
    char *end = place + strlen(place), script[16];
    memcpy(script, version, sizeof script);
    script[sizeof script - 1] = 0;
    put(end, "/bin/monarch");
    if (read_path(place, "#!", python))
        return 1;
    put(put(end, "/bin/"), script);
    put(python, place);
    return is_interpreter(python);
}

int monarch_find_interpreter(char *python, char *packages) {
    const char *library = monarch_library;
    if (!library || library[0] != '/' || strlen(library) >= MONARCH_PATH_MAX - 64)
        return 0;
    put(packages, library);
    if (!cut(packages))
        return 0;
    /* If the library was built in a checkout, setup.py has written the interpreter's path to the
     * file `interpreter` beside the library. */
    char *end = packages + strlen(packages);
    put(end, "/interpreter");
    int found = read_path(packages, "", python);
    *end = 0;
    return cut(packages) && (found || find_beside(python, packages));
}
