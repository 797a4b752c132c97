/* Checks that apply to every interposed call: errno, descriptors, errors of wrong paths, stack
 * use. */
#include "processes.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static const char *outcome(const struct trial *trial) {
    return trial->result < 0          ? strerrorname_np(trial->error)
           : trial->error == SENTINEL ? "errno untouched"
                                      : "errno changed";
}

static int only_reads(const struct call *call) {
    return call->kind == OPENS || call->kind == STREAMS || call->kind == LOOKS;
}

/* --- errno -------------------------------------------------------------------------------------
 */

/* Tries each call on these names, in this order: a file with a copy; a file without a copy (each
 * time another one of several such files); a file that the catalog does not list; a file that the
 * configuration excludes from copying; a link; three names that do not exist. */
static void op_errno(void) {
    static const char *const names[] = {"f", "", "late", "f.skip", "to_f", "no", "no/f", "f/f"};
    int cold = 0;
    for (const struct call *call = calls; call->name; call++)
        for (int form = 0; form < FORMS; form++) {
            struct trial trial = {.call = call, .form = (enum form)form};
            try_call(&trial);
            printf("%s, %s: %s\n", call->name, form_names[form], outcome(&trial));
            for (size_t i = 0; only_reads(call) && i < sizeof names / sizeof *names; i++) {
                char next[16];
                snprintf(next, sizeof next, "cold%d", cold++ % 100);
                trial.name = *names[i] ? names[i] : next;
                try_call(&trial);
                printf("%s %s, %s: %s\n", call->name, *names[i] ? names[i] : "cold",
                       form_names[form], outcome(&trial));
            }
        }
}

/* --- descriptors -------------------------------------------------------------------------------
 */

/* The open descriptors leave gaps between their numbers, so that the output shows whether a call
 * takes the lowest free number. The trial itself opens one or two descriptors before the call. */
static void op_descriptors(void) {
    for (int fd = 3; fd < 14; fd++)
        CHECK(reading("f") == fd);
    close(5), close(8), close(9), close(12);
    uint64_t before = open_descriptors();
    for (const struct call *call = calls; call->name; call++)
        for (int form = 0; form < FORMS; form++) {
            struct trial trial = {.call = call, .form = (enum form)form};
            try_call(&trial);
            printf("%s, %s: %lx\n", call->name, form_names[form], (unsigned long)trial.opened);
            CHECK(open_descriptors() == before);
        }
}

/* Opens files that the catalog does not list. The daemon adds these files to the catalog, which has
 * to grow. Meanwhile, each open must return the lowest free descriptor. */
static void op_lowest_while_it_grows(void) {
    uint64_t before = open_descriptors();
    for (int round = 0; round < 6; round++)
        for (int i = 0; i < 600; i++) {
            char name[32];
            struct stat st;
            snprintf(name, sizeof name, "new/%d", i);
            int fd = open(in(name), O_RDONLY);
            CHECK(fd == 3 && fstat(fd, &st) == 0 && st.st_size == i);
            CHECK(close(fd) == 0 && stat(in(name), &st) == 0 && st.st_size == i);
            CHECK(open_descriptors() == before);
            if (i % 60 == 0)
                /* Gives the daemon time to add files. The library sends it the paths of unlisted
                 * files through only 64 slots. */
                usleep(5000);
        }
    tell_rest("f", reading("f"));
}

/* --- invalid paths -----------------------------------------------------------------------------
 */

struct wrong {
    const struct call *call;
    int dir;
    const char *path;
};

static void try_wrong(void *argument) {
    const struct wrong *wrong = argument;
    set_other(AT_FDCWD, out("nowhere/to"));
    long result = wrong->call->run(wrong->dir, wrong->path);
    printf("%s\n", result < 0 ? strerrorname_np(errno) : "done");
}

static const char *long_path(const char *start, const char *unit, size_t n) {
    char *path = malloc(n + 1), *at = path + strlen(start);
    CHECK(path && strlen(start) < n);
    strcpy(path, start);
    for (size_t i = 0; at < path + n; i++)
        *at++ = unit[i % strlen(unit)];
    *at = 0;
    return path;
}

/* Returns whether the call is mkstemp or a variant of it. The wrappers of these calls copy the path
 * into a buffer, and so cannot take an invalid pointer as a path. */
static int takes_template(const struct call *call) {
    return strncmp(call->name, "mkstemp", 7) == 0 || strncmp(call->name, "mkostemp", 8) == 0 ||
           strcmp(call->name, "mkdtemp") == 0;
}

/* Makes each call that takes a path in a child process of its own. If the call crashes, the crash
 * is printed as its outcome. */
static void wrong_path(const char *what, int dir, const char *path,
                       int (*applies)(const struct call *)) {
    for (const struct call *call = calls; call->name; call++) {
        struct wrong wrong = {call, dir, path};
        if (call->kind == BY_FD || takes_template(call) || (applies && !applies(call)))
            continue;
        printf("%s, %s: ", call->name, what);
        in_child("", try_wrong, &wrong);
    }
}

static int is_at(const struct call *call) { return call->at; }
static int only_changes(const struct call *call) {
    /* fopen for writing counts as a change, too. The mode tells the library that the stream will
     * write, so the library does not look the file up before the call. */
    return call->kind >= CHANGES && call->kind != ENTERS;
}

static void op_no_path(void) { wrong_path("NULL", AT_FDCWD, NULL, NULL); }

/* Tries only calls that change files. A call that only reads a file crashes on a bad pointer, as
 * the documentation says. */
static void op_bad_pointers(void) {
    char *end = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(end != MAP_FAILED && munmap(end + 4096, 4096) == 0);
    memset(end, 'x', 4096);
    wrong_path("(void *)1", AT_FDCWD, (const char *)1, only_changes);
    wrong_path("without an end", AT_FDCWD, end + 4000, only_changes);
}

static void op_long_paths(void) {
    CHECK(chdir(here) == 0);
    wrong_path("empty", AT_FDCWD, "", NULL);
    wrong_path("4096 bytes", AT_FDCWD, long_path(in(""), "d/../", 4096), NULL);
    wrong_path("4095 bytes", AT_FDCWD, joined(long_path(in(""), "/", 4093), "f"), only_reads);
    wrong_path("5000 slashes", AT_FDCWD, long_path("", "/", 5000), NULL);
    wrong_path("4095 bytes, relative", AT_FDCWD, joined(long_path("", "./", 4093), "f"),
               only_reads);
    wrong_path("4096 bytes, relative", AT_FDCWD, long_path("", "./", 4096), NULL);
    wrong_path("long name", AT_FDCWD, long_path(in("d/"), "n", strlen(here) + 300), NULL);
    wrong_path("long relative name", AT_FDCWD, long_path("", "n", 256), NULL);
    wrong_path("links in a circle", AT_FDCWD, in("circle/f"), NULL);
}

static void op_bad_directories(void) {
    wrong_path("descriptor 77", 77, "no/f", is_at);
    wrong_path("descriptor -5", -5, "no/f", is_at);
    wrong_path("descriptor of a copy", reading("f"), "no/f", is_at);
    wrong_path("descriptor of a pipe", 0, "no/f", is_at);
    wrong_path("absolute path", 77, in("no/f"), is_at);
    wrong_path("NULL and a descriptor", 77, NULL, is_at);
}

static void look_nowhere(void *fd) {
    struct stat *volatile nowhere = NULL;
    struct statx *volatile x_nowhere = NULL;
    const char *f = in("f");
    switch (*(int *)fd % 10) {
    case 0:
        SAY(stat(f, nowhere));
        break;
    case 1:
        SAY(lstat(f, nowhere));
        break;
    case 2:
        SAY(fstat(*(int *)fd / 10, nowhere));
        break;
    case 3:
        SAY(fstatat(AT_FDCWD, f, nowhere, 0));
        break;
    case 4:
        SAY(statx(AT_FDCWD, f, 0, STATX_BASIC_STATS, x_nowhere));
        break;
    case 5:
        SAY(stat(in("no"), nowhere));
        break;
    default:
        SAY(fstat(-1, nowhere));
    }
}

static void op_stat_to_nowhere(void) {
    for (int i = 0, fd = reading("f"); i < 7; i++) {
        int which = fd * 10 + i;
        in_child("stat", look_nowhere, &which);
    }
}

/* --- stacks ------------------------------------------------------------------------------------
 */

enum { SMALLEST = 16384, ROOMY = 1 << 18 };

static void *try_in_thread(void *trial) {
    try_call(trial);
    return NULL;
}

/* Returns the lowest byte of a new stack of `n` bytes. Any access to the page below it fails. */
static unsigned char *stack_of(size_t n) {
    unsigned char *low =
        mmap(NULL, n + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(low != MAP_FAILED && mprotect(low, 4096, PROT_NONE) == 0);
    return low + 4096;
}

static void on_stack(unsigned char *stack, size_t n, struct trial *trial) {
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, stack, n) == 0);
    CHECK(pthread_create(&thread, &attributes, try_in_thread, trial) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void on_smallest_stack(void *trial) {
    on_stack(stack_of(SMALLEST), SMALLEST, trial);
    printf("%s\n", outcome(trial));
}

/* Makes each call on a stack of the smallest size that a thread may have. */
static void op_small_stacks(void) {
    for (const struct call *call = calls; call->name; call++)
        for (int form = 0; form < FORMS; form++) {
            struct trial trial = {.call = call, .form = (enum form)form};
            char what[100];
            snprintf(what, sizeof what, "%s, %s", call->name, form_names[form]);
            printf("%s: ", what);
            in_child(what, on_smallest_stack, &trial);
        }
}

/* Prints how much stack each call uses, including libc's part [bytes]. */
static void op_stack_use(void) {
    unsigned char *stack = stack_of(ROOMY);
    for (const struct call *call = calls; call->name; call++)
        for (int form = 0; form < FORMS; form++) {
            struct trial trial = {.call = call, .form = (enum form)form, .paint = stack};
            on_stack(stack, ROOMY, &trial);
            printf("%s, %s: %zu\n", call->name, form_names[form], trial.stack);
        }
}

const struct process_case of_checks[] = {
    {"errno", op_errno},
    {"descriptors", op_descriptors},
    {"lowest_while_it_grows", op_lowest_while_it_grows},
    {"no_path", op_no_path},
    {"bad_pointers", op_bad_pointers},
    {"long_paths", op_long_paths},
    {"bad_directories", op_bad_directories},
    {"stat_to_nowhere", op_stat_to_nowhere},
    {"small_stacks", op_small_stacks},
    {"stack_use", op_stack_use},
    {NULL, NULL},
};
