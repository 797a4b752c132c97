/* In this unit, a test can make close_range fail, as on kernels before Linux 5.9. */
#include <errno.h>

#include "shared/sys.h"

static int lacks_close_range;
static long make_call(long number, long a, long b, long c, long d, long e, long f);
#define sys6(number, a, b, c, d, e, f) make_call(number, a, b, c, d, e, f)
#include "preload/autostart/launch.c"
#undef sys6
BESIDE static long make_call(long number, long a, long b, long c, long d, long e, long f) {
    return lacks_close_range && number == SYS_close_range ? -ENOSYS
                                                          : sys6(number, a, b, c, d, e, f);
}

#include "made.h"

static struct monarch_launch launch;
/* kept, errors_to: the files that become the program's descriptors 3 and 2, or NULL for none.
 * awaited: NULL, or a FIFO. In the case of a FIFO, the program starts only when somebody opens the
 * FIFO for writing. */
static const char *kept, *errors_to, *awaited;
BESIDE static int prepare(void *data, int *errors) {
    if (data != &launch)
        return -1;
    if (awaited)
        sys_openat(AT_FDCWD, awaited, O_RDONLY | O_CLOEXEC);
    if (errors_to)
        *errors = sys_openat(AT_FDCWD, errors_to, O_WRONLY | O_CLOEXEC);
    return kept ? sys_openat(AT_FDCWD, kept, O_WRONLY | O_CLOEXEC) : -1;
}
/* Launches the program words[0] with the arguments `words` and the environment `variables`. For the
 * three files, see `kept`, `errors_to` and `awaited`. Returns whether the kernel has made a process
 * for the launch, or -1 if errno has changed. */
EXPORT int launch_run(const char *const *words, const char *const *variables, const char *kept_file,
                      const char *error_file, const char *wait_for, int is_old_kernel) {
    kept = kept_file;
    errors_to = error_file;
    awaited = wait_for;
    lacks_close_range = is_old_kernel;
    for (int i = 0; i < 8; i++)
        launch.argv[i] = NULL;
    for (int i = 0; words[i]; i++)
        launch.argv[i] = words[i];
    launch.envp = variables;
    launch.prepare = prepare;
    launch.data = &launch;
    uint64_t signals = sys_signals(SIG_BLOCK, ~0ULL);
    errno = 54321;
    int r = monarch_launch(&launch), error = errno;
    sys_signals(SIG_SETMASK, signals);
    return error == 54321 ? r : -1;
}
EXPORT int launch_is_over(void) { return monarch_launch_is_over(&launch); }
/* Returns whether a launch with these members of struct monarch_launch is over. owner: pid of the
 * process that has made the launch. The others are pids of the launched processes; 0: there is no
 * such process, or it no longer uses this process's memory. */
EXPORT int launch_is_over_with(uint32_t owner, uint32_t between_runs, uint32_t runs,
                               uint32_t between) {
    struct monarch_launch l = {
        .owner = owner, .between_runs = between_runs, .runs = runs, .between = between};
    return monarch_launch_is_over(&l);
}
