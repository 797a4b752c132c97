#include "preload/autostart/autostart.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "preload/autostart/claim.h"
#include "preload/autostart/interpreter.h"
#include "preload/autostart/launch.h"
#include "preload/autostart/record.h"
#include "preload/descriptors/track.h"
#include "preload/process/calls.h"
#include "preload/process/log.h"
#include "preload/process/proc.h"
#include "preload/process/text.h"
#include "preload/session/segments.h"
#include "shared/sys.h"
#include "shared/xxh3.h"

/* After an attempt to start a daemon, this process makes no other attempt for this long [ns]. */
#define PAUSE_NS 200000000ULL
/* How long [ns] this process makes no other attempt after it has found no interpreter. It is also
 * the longest pause after an attempt that the claim (claim.h) did not allow. The claim limits the
 * number of starts. */
#define LONG_PAUSE_NS 1000000000ULL
/* If a daemon's heartbeat counter has not changed for this long [ns], the daemon is assumed to be
 * killed. For a daemon in another pid namespace, this process has no other sign. */
#define SILENT_NS 10000000000ULL
/* Number of bytes of a configuration that are searched for the word `autostart`. */
#define MOST_SEARCHED 65536

uint32_t monarch_autostart;

/* The state of autostart in this process, set up when the library is loaded. Its memory is
 * allocated only if autostart is requested. */
struct plan {
    uint64_t mounts, users, net, root_dev, root_ino; /* inodes of namespaces and root, at load */
    /* result of confinement() at load */
    uint64_t confined;
    uint64_t signals; /* signals that were blocked at load */
    uint32_t uid, gid;
    uint32_t wish; /* atomic: enum monarch_wish */
    /* Atomic. While a thread is trying to start a daemon: the pid of that thread's process.
     * Otherwise 0. Only that thread uses the fields below. */
    uint32_t user;
    uint64_t blocked; /* signals that were blocked before the attempt */
    char record[MONARCH_RECORD_BYTES];
    char config[MONARCH_PATH_MAX], name[MONARCH_PATH_MAX];
    char python[MONARCH_PATH_MAX], packages[MONARCH_PATH_MAX];
    struct monarch_launch launch;
    /* The environment of the starter. Its strings follow this array in the same memory. */
    const char *envp[];
};
static struct plan *plan;
static uint64_t next_ns; /* atomic: time before which no attempt is made */

static void switch_off(void) { __atomic_store_n(&monarch_autostart, 0, __ATOMIC_RELAXED); }

/* --- the environment ------------------------------------------------------------------------- */

/* Returns whether jobs set this variable for their own programs, for example LD_PRELOAD. Such
 * variables must not reach the daemon's Python. */
static int is_the_jobs(const char *variable) {
    static const char *const prefixes[] = {"LD_",  "PYTHON",          "OMP_", "GOMP_", "KMP_",
                                           "MKL_", "MONARCH_DISABLE="};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(variable, prefixes[i], strlen(prefixes[i])) == 0)
            return 1;
    return 0;
}

static size_t environment_bytes(size_t *variables) {
    size_t bytes = 0;
    for (*variables = 0; environ && environ[*variables]; ++*variables)
        bytes += strlen(environ[*variables]) + 1;
    return bytes + (*variables + 2) * sizeof(char *);
}

/* Copies the environment for the starter, the program that starts the daemon. Call this when the
 * library is loaded, because other threads may change the environment later. The copy lacks the
 * job's own variables (is_the_jobs). It contains MONARCH_DISABLE=1: if /etc/ld.so.preload loads the
 * library in the starter too, the library must do nothing there. */
static void copy_environment(struct plan *p, size_t variables) {
    char *text = (char *)&p->envp[variables + 2];
    size_t n = 0;
    for (size_t i = 0; i < variables; i++)
        if (!is_the_jobs(environ[i])) {
            p->envp[n++] = text;
            text = put(text, environ[i]) + 1;
        }
    p->envp[n] = "MONARCH_DISABLE=1";
}

static const char *value_of(const char *name) {
    size_t n = strlen(name);
    for (const char **at = plan->envp; *at; at++)
        if (strncmp(*at, name, n) == 0 && (*at)[n] == '=')
            return *at + n + 1;
    return NULL;
}

/* --- the user's wish -------------------------------------------------------------------------- */

/* Returns whether the file contains the word `autostart`. The library cannot read YAML. So the
 * starter reads the file later, and decides whether it starts a daemon. */
static int has_word(const char *file) {
    static const char word[] = "autostart";
    struct monarch_reader r;
    struct stat st;
    size_t same = 0;
    char c;
    if (!file || sys_fstatat(AT_FDCWD, file, &st, 0) != 0 || !S_ISREG(st.st_mode) ||
        !monarch_reader_open(&r, file))
        return 0;
    for (int n = 0; n < MOST_SEARCHED && word[same] && (c = monarch_reader_next(&r)); n++)
        same = c == word[same] ? same + 1 : c == word[0];
    monarch_reader_close(&r);
    return !word[same];
}

static int may_be_wished(const char *config) {
    return has_word(config) || has_word(secure_getenv("MONARCH_SITE_CONFIG"));
}

static int has_record(void) {
    uint64_t size;
    int fd = monarch_open_segment("autostart", O_RDONLY, &size);
    if (fd >= 0)
        sys_close(fd);
    return fd >= 0;
}

/* Reads from the session's record whether the user wishes a daemon to be started.
 * MONARCH_AUTOSTART=1 overrides a record that says no. */
static void read_wish(struct plan *p) {
    const char *asked = value_of("MONARCH_AUTOSTART");
    const struct monarch_setting now = {p->config, p->mounts, value_of};
    enum monarch_wish wish = monarch_read_record(p->record, &now);
    if (wish == MONARCH_WISH_NO && asked && *asked)
        wish = MONARCH_WISH_YES;
    __atomic_store_n(&p->wish, wish, __ATOMIC_RELEASE);
    if (wish == MONARCH_WISH_NO)
        switch_off();
}

/* --- the process's surroundings --------------------------------------------------------------- */

static uint64_t inode_of(const char *path, uint64_t *dev) {
    struct stat st;
    if (sys_fstatat(AT_FDCWD, path, &st, 0) != 0)
        return 0;
    if (dev)
        *dev = st.st_dev;
    return st.st_ino;
}

static uint32_t id(long call) { return (uint32_t)sys6(call, 0, 0, 0, 0, 0, 0); }

static uint64_t blocked_signals(void) { return sys_signals(SIG_BLOCK, 0); }

/* Returns a checksum of what /proc shows about the thread's confinement, such as its capabilities
 * and system call filters. Returns 0 if /proc cannot be read, for example because no descriptor is
 * free. */
static uint64_t confinement(void) {
    static const char first[] = "\nCapInh:", last[] = "\nCpus_allowed:";
    char text[2048];
    int fd = sys_openat(AT_FDCWD, "/proc/thread-self/status", O_RDONLY | O_CLOEXEC);
    long n = fd < 0 ? 0 : sys_read(fd, text, sizeof text - 1);
    if (fd >= 0)
        sys_close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *begin = strstr(text, first), *end = begin ? strstr(begin, last) : NULL;
    return end ? monarch_xxh3(begin, (size_t)(end - begin)) : 0;
}

/* Returns whether this process may start a daemon in its present surroundings.
 *
 * The result is 0 if the process's user, group, root directory or namespaces have changed since the
 * library was loaded. The daemon would inherit the new ones, and would be of little use to other
 * processes.
 *
 * The result is 0 if the process is pid 1 or a subreaper. Pid 1 and subreapers adopt orphans, so
 * the process would become the daemon's parent. The program's wait() would then report the daemon.
 *
 * The result is 0 if the process has called unshare(CLONE_NEWPID). The intermediate process
 * (launch.c) would be the first process of the new namespace. Its end would kill all other
 * processes of that namespace. */
static int is_where_we_were_loaded(const struct plan *p) {
    int adopts = 0;
    uint64_t dev = 0, pids = inode_of("/proc/thread-self/ns/pid_for_children", NULL);
    sys6(SYS_prctl, PR_GET_CHILD_SUBREAPER, (long)&adopts, 0, 0, 0, 0);
    return !adopts && sys_getpid() != 1 && id(SYS_getuid) == p->uid && id(SYS_geteuid) == p->uid &&
           id(SYS_getgid) == p->gid && id(SYS_getegid) == p->gid &&
           inode_of("/", &dev) == p->root_ino && dev == p->root_dev && pids &&
           pids == inode_of("/proc/thread-self/ns/pid", NULL) &&
           inode_of("/proc/thread-self/ns/mnt", NULL) == p->mounts &&
           inode_of("/proc/thread-self/ns/user", NULL) == p->users &&
           inode_of("/proc/thread-self/ns/net", NULL) == p->net;
}

/* Returns whether a start is possible now. Two obstacles only postpone the start. First, a signal
 * is blocked that was not blocked at load: the thread may be in a handler of that signal. Second,
 * /proc cannot be read, for example because no descriptor is free. Any other obstacle switches
 * autostart off in this process for good. */
static int may_start(const struct plan *p) {
    if (p->blocked & ~p->signals)
        return 0;
    int is_there = is_where_we_were_loaded(p);
    uint64_t confined = is_there ? confinement() : 0;
    if (!is_there || (confined && confined != p->confined))
        switch_off();
    return is_there && confined && confined == p->confined;
}

/* --- starting -------------------------------------------------------------------------------- */

/* Returns whether a daemon serves a session other than `s`. */
static int another_serves(const struct session *s) {
    struct monarch_segment found;
    if (!monarch_map_segment("control", &found))
        return 0;
    const struct monarch_control *k = found.map;
    int serves = found.size >= sizeof *k && k->state == MONARCH_SERVING &&
                 (found.ino != s->ino || found.dev != s->dev);
    sys_unmap(found.map, found.size);
    return serves;
}

static void pause_until(uint64_t ns) { __atomic_store_n(&next_ns, ns, __ATOMIC_RELAXED); }

/* Runs in a new process. Returns the descriptor of the claim (claim.h) if that process is to become
 * the starter. Returns -1 if the claim allows no start, or if the Python interpreter is not found.
 * In the second case, a later attempt searches again, because the file system may have failed only
 * for a moment. */
static int prepare(void *data, int *errors) {
    struct plan *p = data;
    if (monarch_find_interpreter(p->python, p->packages))
        return monarch_claim_start(errors);
    pause_until(monarch_now_ns() + LONG_PAUSE_NS);
    return -1;
}

static void launch(struct plan *p) {
    static const char code[] = "import sys; sys.path.insert(0, sys.argv.pop(1));"
                               " from monarch_py.commands.autostart import main; main()";
    const char *const argv[] = {p->python, "-I", "-c", code, p->packages, p->config, p->name, NULL};
    struct monarch_launch *l = &p->launch;
    memcpy(l->argv, argv, sizeof argv);
    l->envp = p->envp;
    l->prepare = prepare;
    l->data = p;
    int done = monarch_launch(l);
    monarch_log("no daemon serves", p->config,
                done ? "requested a start" : "could not request a start");
}

/* If the claim (claim.h) allows no start now, postpones the next attempt and returns 1. Otherwise
 * returns 0. */
static int is_taken(void) {
    uint64_t now = monarch_now_ns(), until = monarch_claim_taken_until();
    if (until)
        pause_until(until < now + LONG_PAUSE_NS ? until : now + LONG_PAUSE_NS);
    return until != 0;
}

static void start(struct plan *p, const struct session *s) {
    pause_until(monarch_now_ns() + PAUSE_NS);
    if (!is_taken() && may_start(p) && !another_serves(s))
        launch(p);
}

static void end_attempt(struct plan *p) {
    uint64_t blocked = p->blocked;
    __atomic_store_n(&p->user, 0, __ATOMIC_RELEASE);
    sys_signals(SIG_SETMASK, blocked);
}

/* Reserves the plan for the calling thread, which then tries to start a daemon. Returns 0 if the
 * thread must not try now, for example because another thread of this process is trying. After a
 * fork, the child may reserve its copy of the plan even if a thread of the parent had reserved the
 * original.
 *
 * Blocks all signals until end_attempt is called. Otherwise, a signal handler could leave the
 * attempt by siglongjmp, and the plan would stay reserved. */
static int begin_attempt(struct plan *p) {
    if (monarch_now_ns() < __atomic_load_n(&next_ns, __ATOMIC_RELAXED))
        return 0;
    uint32_t pid = (uint32_t)sys_getpid(), user = __atomic_load_n(&p->user, __ATOMIC_ACQUIRE);
    if (user == pid || !monarch_track_is_mine())
        return 0;
    uint64_t blocked = sys_signals(SIG_BLOCK, ~0ULL);
    if (!__atomic_compare_exchange_n(&p->user, &user, pid, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        sys_signals(SIG_SETMASK, blocked);
        return 0;
    }
    p->blocked = blocked;
    if (monarch_launch_is_over(&p->launch))
        return 1;
    pause_until(monarch_now_ns() + PAUSE_NS);
    end_attempt(p);
    return 0;
}

/* --- at an open ------------------------------------------------------------------------------ */

/* Returns whether the path is in a system directory, where no dataset is stored. */
static int is_the_systems(const char *path) {
    static const char *const prefixes[] = {"/usr/",    "/lib/", "/lib32/", "/lib64/",
                                           "/libx32/", "/bin/", "/sbin/",  "/etc/",
                                           "/proc/",   "/sys/", "/dev/"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(path, prefixes[i], strlen(prefixes[i])) == 0)
            return 1;
    return path[0] != '/'; /* the kernel's name of a pipe or socket is no path */
}

/* Returns whether the file that is open as `fd` may belong to a dataset. Writes the path that the
 * kernel reports for the file to `name` (MONARCH_PATH_MAX bytes). */
static int may_be_of_source(struct plan *p, int fd, char *name) {
    char link[32];
    struct stat st;
    put_number(put(link, "/proc/self/fd/"), (uint64_t)fd, 10, 1);
    long n = sys_readlink(link, name, MONARCH_PATH_MAX - 1);
    name[n > 0 ? n : 0] = 0;
    int may_be = __atomic_load_n(&p->wish, __ATOMIC_ACQUIRE) == MONARCH_WISH_YES
                     ? monarch_record_has(p->record, name)
                     : !is_the_systems(name);
    return may_be && sys_fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

/* Returns whether this process was attached to a daemon that the user has stopped since then
 * (`monarch stop`). The library does not start such a daemon again. */
static int is_to_stay_stopped(const struct session *s) {
    uint64_t size = 0;
    int fd = s == &monarch_waiting ? -1 : monarch_open_segment("stopped", O_RDONLY, &size);
    if (fd >= 0)
        sys_close(fd);
    return size != 0;
}

/* Returns 1 if the claim (claim.h) forbids a start now. The caller then need not examine the opened
 * file. The claim is checked at most once per LONG_PAUSE_NS. Without a check, the result is 0,
 * whether a start is allowed or not. */
static int are_used_up(void) {
    static uint64_t looked_ns; /* atomic */
    uint64_t now = monarch_now_ns(), last = __atomic_load_n(&looked_ns, __ATOMIC_RELAXED);
    if (now - last < LONG_PAUSE_NS)
        return 0;
    __atomic_store_n(&looked_ns, now, __ATOMIC_RELAXED);
    return is_taken();
}

void monarch_autostart_opened_slow(int fd) {
    struct session *s = __atomic_load_n(&monarch_current, __ATOMIC_ACQUIRE);
    struct plan *p = plan;
    if (monarch_is_serving(s) || !begin_attempt(p))
        return;
    int is_due = !are_used_up() && may_be_of_source(p, fd, p->name);
    if (is_due && __atomic_load_n(&p->wish, __ATOMIC_ACQUIRE) == MONARCH_WISH_UNKNOWN) {
        read_wish(p);
        is_due = may_be_of_source(p, fd, p->name);
    }
    if (is_due && __atomic_load_n(&monarch_autostart, __ATOMIC_RELAXED) && !is_to_stay_stopped(s))
        start(p, s);
    end_attempt(p);
}

/* --- while a session is used ----------------------------------------------------------------- */

/* Atomic. seen_beat: the daemon's heartbeat counter when it was last read, plus the session's inode
 * number. Because of the inode number, the sum also changes when the process attaches to a new
 * session. seen_ns: time of the last change of seen_beat [ns]. */
static uint64_t seen_beat, seen_ns;

/* Returns whether the daemon's process has certainly ended. If the daemon is in another pid
 * namespace, the result is 0, because this process cannot see the daemon. */
static int is_gone(const struct session *s) {
    return s->control->pids && s->control->pids == inode_of("/proc/thread-self/ns/pid", NULL) &&
           sys6(SYS_kill, s->control->pid, 0, 0, 0, 0, 0) == -ESRCH;
}

static int is_dead(const struct session *s) {
    uint64_t beat = __atomic_load_n(&s->control->heartbeat, __ATOMIC_RELAXED) + s->ino;
    uint64_t now = monarch_now_ns();
    if (__atomic_exchange_n(&seen_beat, beat, __ATOMIC_RELAXED) != beat)
        __atomic_store_n(&seen_ns, now, __ATOMIC_RELAXED);
    return now - __atomic_load_n(&seen_ns, __ATOMIC_RELAXED) >= SILENT_NS || is_gone(s);
}

/* Launches a starter for the session, unless the configuration says that no daemon is to be
 * started. */
static void start_for_session(struct plan *p, const struct session *s) {
    if (!begin_attempt(p))
        return;
    p->name[0] = 0;
    if (__atomic_load_n(&p->wish, __ATOMIC_ACQUIRE) == MONARCH_WISH_UNKNOWN)
        read_wish(p);
    if (__atomic_load_n(&monarch_autostart, __ATOMIC_RELAXED))
        start(p, s);
    end_attempt(p);
}

void monarch_autostart_watch_slow(const struct session *s) {
    if (monarch_is_serving(s) && is_dead(s))
        start_for_session(plan, s);
}

/* --- at load --------------------------------------------------------------------------------- */

static struct plan *new_plan(const char *config) {
    size_t variables, bytes = sizeof(struct plan) + environment_bytes(&variables);
    struct plan *p = sys_new_pages(bytes);
    if (!p || strlen(config) >= sizeof p->config || !REAL(realpath)(config, p->config))
        return NULL;
    copy_environment(p, variables);
    p->uid = id(SYS_geteuid);
    p->gid = id(SYS_getegid);
    p->signals = blocked_signals();
    p->mounts = inode_of("/proc/thread-self/ns/mnt", NULL);
    p->users = inode_of("/proc/thread-self/ns/user", NULL);
    p->net = inode_of("/proc/thread-self/ns/net", NULL);
    p->root_ino = inode_of("/", &p->root_dev);
    p->confined = confinement();
    monarch_track_mark();
    monarch_track_adopt();
    return p;
}

/* Returns whether `named`, the value of MONARCH_SOURCE, contains a directory that is not a source
 * of the session. The value is a list of directories, separated by ':'. */
static int lacks_source(const struct session *s, const char *named) {
    for (size_t n = 0; named && *named; named += n + (named[n] == ':')) {
        int has = 0;
        n = strcspn(named, ":");
        for (uint32_t i = 0; i < s->control->sources; i++) {
            const struct monarch_source *source = &s->control->source[i];
            has |= (n == source->path_len && memcmp(named, source->path, n) == 0) ||
                   (n == source->alias_len && memcmp(named, source->alias, n) == 0);
        }
        if (!has)
            return 1;
    }
    return 0;
}

/* Returns whether a starter is needed although there is a session. One reason is that the session's
 * daemon was killed. The other reason is that the daemon must learn of a new source. If the session
 * has a record for this process's setting (record.h), the daemon already has the setting's sources:
 * when a daemon starts, it removes the records of all other settings. */
static int needs_starter(const struct plan *p, const struct session *s) {
    return is_gone(s) ||
           (p->wish == MONARCH_WISH_UNKNOWN && lacks_source(s, value_of("MONARCH_SOURCE")));
}

int monarch_autostart_init(const char *config, const struct session *s) {
    const char *asked = secure_getenv("MONARCH_AUTOSTART");
    int is_asked = asked && *asked;
    if (is_asked && strcmp(asked, "0") == 0)
        return 0;
    if (!is_asked && !has_record() &&
        ((s && !secure_getenv("MONARCH_SOURCE")) || !may_be_wished(config)))
        return 0;
    if (!(plan = new_plan(config)))
        return 0;
    __atomic_store_n(&monarch_autostart, 1, __ATOMIC_RELAXED);
    read_wish(plan);
    /* has_record also finds a record for another setting, or for an earlier version of the
     * configuration. A record of this kind does not show that the user wants autostart. */
    if (plan->wish == MONARCH_WISH_UNKNOWN && !is_asked && !may_be_wished(config))
        monarch_autostart = 0;
    if (s && monarch_autostart && needs_starter(plan, s))
        start_for_session(plan, s);
    return (int)monarch_autostart;
}
