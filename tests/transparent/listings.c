/* Lists a directory in one of several ways. The output must be the same with and without the
 * library.
 *
 *     listings WAY DIRECTORY
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MANY 300 /* more listings than the library can have open at a time */
#define THREADS 8
#define ROUNDS 50

static void print_name(const char *name) {
    for (; *name; name++)
        if (*name > ' ' && *name <= '~' && *name != '%')
            putchar(*name);
        else
            printf("%%%02x", (unsigned char)*name);
}

static void print(const struct dirent *e) {
    printf("%lu type %d room %d ", e->d_ino, e->d_type, e->d_reclen);
    print_name(e->d_name);
    putchar('\n');
}

static DIR *opened(const char *path) {
    errno = 0;
    DIR *d = opendir(path);
    if (!d)
        printf("opendir: %s\n", strerror(errno));
    return d;
}

static int is_dots(const struct dirent *e) {
    return strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
}

/* Returns the next entry that is not "." or "..". The positions of "." and ".." in a listing depend
 * on the file system, and the library may list them at other positions. */
static struct dirent *next(DIR *d) {
    struct dirent *e;
    do
        e = readdir(d);
    while (e && is_dots(e));
    return e;
}

static int read_all(DIR *d) {
    struct dirent *e;
    int n = 0;
    errno = 0;
    for (; (e = next(d)); n++)
        print(e);
    printf("end: %d; %d names\n", errno, n);
    return n;
}

static void print_dots(const char *path) {
    ino_t dots[2] = {0, 0};
    DIR *d = opened(path);
    for (struct dirent *e; d && (e = readdir(d));)
        if (is_dots(e))
            dots[e->d_name[1] != 0] = e->d_ino;
    if (d)
        printf(". %lu .. %lu, %d\n", dots[0], dots[1], closedir(d));
}

static void plain(const char *path) {
    DIR *d = opened(path);
    if (!d)
        return;
    read_all(d);
    printf("again %d\n", next(d) != NULL);
    printf("close %d\n", closedir(d));
    print_dots(path);
}

static void rewound(const char *path) {
    DIR *d = opened(path);
    if (!d)
        return;
    next(d);
    rewinddir(d);
    read_all(d);
    rewinddir(d);
    read_all(d);
    closedir(d);
}

static void positions(const char *path) {
    static long at[20000];
    DIR *d = opened(path);
    int n = 0;
    if (!d)
        return;
    do
        at[n++] = telldir(d);
    while (n < 20000 && next(d));
    for (int i = n - 1; i >= 0; i -= 1 + i / 50) {
        seekdir(d, at[i]);
        printf("tells %d: ", telldir(d) == at[i]);
        struct dirent *e = next(d);
        if (e)
            print(e);
        else
            printf("end\n");
    }
    seekdir(d, at[0]);
    read_all(d);
    closedir(d);
}

static void reentrant(const char *path) {
    struct dirent e, *found;
    DIR *d = opened(path);
    if (!d)
        return;
    int r, dots = 0;
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    while ((r = readdir_r(d, &e, &found)) == 0 && found)
        if (is_dots(found))
            dots++;
        else
            print_name(e.d_name), printf(" %lu %d\n", e.d_ino, e.d_type);
    printf("end %d %d, %d dots\n", r, found == NULL, dots);
    closedir(d);
}

static void descriptor(const char *path) {
    struct stat by_path, by_fd, below;
    DIR *d = opened(path);
    if (!d)
        return;
    struct dirent *e = next(d);
    int fd = dirfd(d);
    printf("%d %d\n", fstat(fd, &by_fd), stat(path, &by_path));
    printf("same %d\n", by_fd.st_ino == by_path.st_ino && by_fd.st_dev == by_path.st_dev);
    printf("flags %x cloexec %d\n", fcntl(fd, F_GETFL), fcntl(fd, F_GETFD));
    for (; e; e = next(d))
        if (e->d_type != DT_DIR)
            printf("%d %d\n", fstatat(dirfd(d), e->d_name, &below, AT_SYMLINK_NOFOLLOW),
                   below.st_ino == e->d_ino);
    printf("fchdir %d\n", fchdir(dirfd(d)));
    DIR *here = opened(".");
    if (here) {
        read_all(here);
        closedir(here);
    }
    printf("close %d\n", closedir(d));
    printf("closed %d %s\n", fcntl(fd, F_GETFD), strerror(errno));
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    d = fdopendir(fd);
    read_all(d);
    closedir(d);
}

static int no_dots(const struct dirent *e) {
    errno = EPERM; /* this errno must not change the result of scandir */
    return e->d_name[0] != '.';
}

static void print_list(struct dirent **names, int n) {
    printf("%d names\n", n);
    for (int i = 0; i < n; i++) {
        print(names[i]);
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    else
        printf("%s\n", strerror(errno));
}

static void scanned(const char *path) {
    struct dirent **names;
    int n = scandir(path, &names, no_dots, NULL);
    print_list(names, n);
    n = scandir(path, &names, no_dots, alphasort);
    print_list(names, n);
    n = scandir(path, &names, NULL, versionsort);
    print_list(names, n);
    int above = open("..", O_PATH);
    n = scandirat(above, path, &names, no_dots, alphasort);
    print_list(names, n);
    if (chdir(path) == 0) {
        int here = open(".", O_RDONLY | O_DIRECTORY);
        n = scandirat(here, ".", &names, NULL, alphasort);
        print_list(names, n);
        n = scandirat(here, "../nothing", &names, NULL, alphasort);
        print_list(names, n);
        close(here);
    }
    close(above);
}

static void many(const char *path) {
    DIR *d[MANY];
    for (int i = 0; i < MANY; i++)
        d[i] = opened(path);
    for (int i = 0; i < MANY; i++)
        for (int k = 0; d[i] && k < i % 4; k++)
            next(d[i]);
    for (int i = MANY - 1; i >= 0; i--)
        if (d[i]) {
            printf("%d: %d left\n", i, read_all(d[i]));
            closedir(d[i]);
        }
    plain(path);
}

static void forked(const char *path) {
    DIR *d = opened(path);
    int status;
    if (!d)
        return;
    next(d);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        read_all(d);
        printf("close %d\n", closedir(d));
        fflush(stdout);
        _exit(7);
    }
    waitpid(child, &status, 0);
    printf("child %d\n", WEXITSTATUS(status));
    read_all(d);
    printf("close %d\n", closedir(d));
}

static void *list_often(void *path) {
    long sum = 0;
    for (int i = 0; i < ROUNDS; i++) {
        DIR *d = opendir(path);
        for (struct dirent *e; d && (e = readdir(d));)
            sum += (long)e->d_ino + e->d_name[strlen(e->d_name) - 1] + e->d_type;
        if (d)
            closedir(d);
    }
    return (void *)sum;
}

static void threads(const char *path) {
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&thread[i], NULL, list_often, (void *)path);
    for (int i = 0; i < THREADS; i++) {
        void *sum;
        pthread_join(thread[i], &sum);
        printf("%ld\n", (long)sum);
    }
}

static int visit(const char *path, const struct stat *st, int type, struct FTW *at) {
    print_name(path);
    printf(" %lu type %d level %d\n", st->st_ino, type, at->level);
    return 0;
}

static void walked(const char *path) {
    char *roots[] = {(char *)path, NULL};
    printf("nftw %d\n", nftw(path, visit, 10, FTW_PHYS));
    FTS *f = fts_open(roots, FTS_PHYSICAL, NULL);
    for (FTSENT *e; f && (e = fts_read(f));) {
        print_name(e->fts_path);
        printf(" fts %d\n", e->fts_info);
    }
    fts_close(f);
}

static void globbed(const char *path) {
    static char pattern[8192];
    const char *ends[] = {"*", ".*", "*/*", "?", "nothing*", "file", "*/"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        glob_t g;
        snprintf(pattern, sizeof pattern, "%s/%s", path, ends[i]);
        printf("%s: %d\n", ends[i], glob(pattern, GLOB_MARK, NULL, &g));
        for (size_t k = 0; k < g.gl_pathc; k++) {
            print_name(g.gl_pathv[k]);
            putchar('\n');
        }
        globfree(&g);
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(const char *path);
    } ways[] = {{"plain", plain},         {"rewound", rewound},       {"positions", positions},
                {"reentrant", reentrant}, {"descriptor", descriptor}, {"scanned", scanned},
                {"many", many},           {"forked", forked},         {"threads", threads},
                {"walked", walked},       {"globbed", globbed}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (argc == 3 && strcmp(argv[1], ways[i].name) == 0) {
            ways[i].run(argv[2]);
            return 0;
        }
    return 2;
}
