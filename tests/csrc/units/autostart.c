/* Here, the library launches no process: a request to launch one is only counted. */
#include "preload/autostart/launch.h"
#include "preload/descriptors/track.h"

static int launches, is_running, is_taken_meanwhile;
static int count_launch(struct monarch_launch *l) {
    launches++;
    return l->argv[0] != NULL;
}
static int is_launched(struct monarch_launch *l) { return l && !is_running; }
static int look_at_owner(void);
#define monarch_launch(l) count_launch(l)
#define monarch_launch_is_over(l) is_launched(l)
#define monarch_track_is_mine() look_at_owner()
#include "preload/autostart/autostart.c"
#undef monarch_track_is_mine

#include "made.h"

/* If `is_taken_meanwhile` is set, reserves the plan as another thread would: after this thread has
 * looked at the plan, and before this thread reserves it. */
static int look_at_owner(void) {
    if (is_taken_meanwhile)
        plan->user = (uint32_t)sys_getpid();
    return monarch_track_is_mine();
}

/* Sets autostart up as the library does when it is loaded. `s`: the session, or NULL if no daemon
 * serves. */
EXPORT int autostart_init(const char *config, struct session *s) {
    plan = NULL;
    next_ns = seen_beat = monarch_autostart = 0;
    launches = is_running = is_taken_meanwhile = 0;
    int is_on = monarch_autostart_init(config, s);
    monarch_current = s ? s : &monarch_waiting;
    return is_on;
}
/* The functions below return how many launches have been requested so far. */
EXPORT int autostart_opened(int fd) {
    monarch_autostart_opened(fd);
    return launches;
}
EXPORT int autostart_watch(struct session *s) {
    monarch_autostart_watch(s);
    return launches;
}
EXPORT int autostart_launches(void) { return launches; }
EXPORT int autostart_is_on(void) { return (int)monarch_autostart; }
EXPORT int autostart_is_planned(void) { return plan != NULL; }
/* Ends the pause that follows an attempt to start a daemon. Returns how long the pause would still
 * have lasted [ns]. */
EXPORT int64_t autostart_end_pause(void) {
    int64_t left = (int64_t)(next_ns - monarch_now_ns());
    next_ns = 0;
    return left;
}
EXPORT void autostart_set_running(int is) { is_running = is; }
EXPORT void autostart_take_meanwhile(int is) {
    is_taken_meanwhile = is;
    plan->user = 0;
}
EXPORT void autostart_take(uint32_t pid) { plan->user = pid; }
EXPORT void autostart_leave(struct session *s) { monarch_current = s ? s : &monarch_waiting; }
/* Returns the address of one of the values that were recorded in the plan at load, such as the
 * inode of the mount namespace. */
EXPORT uint64_t *autostart_loaded(int i) {
    uint64_t *const all[] = {&plan->mounts,   &plan->users,    &plan->net,
                             &plan->root_dev, &plan->root_ino, &plan->confined};
    return all[i];
}
EXPORT uint32_t *autostart_ids(int i) { return i ? &plan->gid : &plan->uid; }
EXPORT const char *autostart_argument(int i) { return plan->launch.argv[i]; }
EXPORT const char *autostart_variable(int i) { return plan->envp[i]; }
EXPORT const char *autostart_value_of(const char *name) { return value_of(name); }
EXPORT void autostart_silent_for(struct session *s, uint64_t ns) {
    seen_beat = s->control->heartbeat + s->ino;
    seen_ns = monarch_now_ns() - ns;
}
EXPORT int autostart_has_word(const char *file) { return has_word(file); }
EXPORT int autostart_is_the_systems(const char *path) { return is_the_systems(path); }
EXPORT int autostart_lacks_source(struct session *s, const char *named) {
    return lacks_source(s, named);
}
EXPORT void autostart_of(struct session *s, uint64_t dev, uint64_t ino) {
    s->dev = dev;
    s->ino = ino;
}
