/* Performs one operation that changes a file, a name or an attribute.
 *
 *     change --list
 *     change OPERATION HERE OUTSIDE
 *
 * HERE holds the files f, g, d/x, d/y and e/x, the hard link `hard` to f, and the symbolic link
 * `to_f` to f. OUTSIDE holds the file `new`, and the symbolic link `into` to HERE/f. The program
 * prints what each call returned. The output must be the same with and without the library. */
#include "change.h"

const char *here, *outside;

static const char *joined(const char *directory, const char *name) {
    char *path = malloc(4096);
    snprintf(path, 4096, "%s/%s", directory, name);
    return path;
}

const char *in(const char *name) { return joined(here, name); }
const char *out(const char *name) { return joined(outside, name); }

long say_as(const char *what, long result) {
    printf("%s = %ld %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
    return result;
}

int reading(const char *name) {
    int fd = open(in(name), O_RDONLY);
    if (fd < 0)
        SAY(fd);
    return fd;
}

/* Prints what this process sees under the name right after the operation: mode, number of links,
 * size and first bytes. */
static void look(const char *name) {
    char start[16] = "";
    struct stat st;
    printf("%s:", name);
    if (stat(in(name), &st) != 0) {
        printf(" %s\n", strerrorname_np(errno));
        return;
    }
    int fd = open(in(name), O_RDONLY);
    ssize_t n = fd < 0 ? -1 : pread(fd, start, 8, 0);
    printf(" %o %ld %ld %zd %.8s\n", st.st_mode, (long)st.st_nlink, (long)st.st_size, n, start);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv) {
    const struct operation *const tables[] = {by_name, by_descriptor, of_names};
    const char *wanted = argc > 1 ? argv[1] : "";
    for (int t = 0; t < 3; t++)
        for (const struct operation *o = tables[t]; o->name; o++) {
            if (strcmp(wanted, "--list") == 0)
                puts(o->name);
            if (argc < 4 || strcmp(wanted, o->name) != 0)
                continue;
            here = argv[2];
            outside = argv[3];
            umask(022);
            o->run();
            static const char *const names[] = {"f", "g", "hard", "to_f", "d/x", "e/x", "h"};
            for (size_t i = 0; i < sizeof names / sizeof *names; i++)
                look(names[i]);
            return 0;
        }
    return strcmp(wanted, "--list") != 0;
}
