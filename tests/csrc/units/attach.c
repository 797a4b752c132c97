#include <errno.h>

#include "preload/autostart/autostart.h"
#include "preload/descriptors/track.h"
#include "preload/session/copies.h"
#include "preload/session/tell.h"
#include "steps.h"

/* The file with the inode `ino` counts as a copy that belongs to `session`. */
static struct {
    uint64_t ino;
    struct session *session;
} copy;
static const struct monarch_entry *find_copy(struct session **s, const struct monarch_catalog **c,
                                             const struct stat *st) {
    static const struct monarch_entry any;
    *c = NULL;
    if (st->st_ino != copy.ino)
        return NULL;
    *s = copy.session;
    return &any;
}
/* 1 if another thread attaches at the same time, and is faster */
static int is_overtaken;
static void overtake(void);
static void untrack_session(unsigned number) {
    monarch_untrack_session(number);
    overtake();
}
/* The functions below replace functions that the library calls while it is being loaded. They only
 * record their calls. is_starting: whether init_autostart reports that the library begins to start
 * a daemon. */
static int is_starting;
static void warn_of(const char *what, const char *name, const char *hint) {
    step("warning: %s %s; %s", what, name, hint);
}
static int init_autostart(const char *config, const struct session *s) {
    step("autostart %s%s", config, s ? " beside a daemon" : "");
    errno = EIO;
    return is_starting;
}
#define monarch_warn(what, name, hint) warn_of(what, name, hint)
#define monarch_pass_warning_on() step("passed on")
#define monarch_autostart_init(config, s) init_autostart(config, s)
#define monarch_behind_copy(s, c, st) find_copy(s, c, st)
#define monarch_untrack_session(number) untrack_session(number)
#include "preload/attach/attach.c"

#include "made.h"

static void overtake(void) {
    if (!is_overtaken)
        return;
    is_overtaken = 0;
    attach_again(monarch_current);
}
EXPORT void attach_overtake(void) { is_overtaken = 1; }
EXPORT void attach_copy(struct session *s, uint64_t ino) {
    copy.session = s;
    copy.ino = ino;
}
/* Attaches to a daemon as a program does when it starts. Returns the session, or NULL. */
EXPORT void *attach_first(void) {
    memset(&first, 0, sizeof first);
    last_tick = lacks_room = 0;
    struct session *s = attach(NULL);
    if (s)
        look_at_switches(s, 0);
    monarch_current = s ? s : &monarch_waiting;
    return s;
}
/* Leaves all sessions, and unmaps their segments. */
EXPORT void attach_end(void) {
    for (struct session *s = monarch_current, *before; s && s != &monarch_waiting; s = before) {
        before = s->before;
        sys_unmap(s->clients, sizeof *s->clients);
        sys_unmap(s->control, sizeof *s->control);
        if (s != &first)
            sys_unmap(s, NODE_BYTES);
    }
    monarch_current = NULL;
}
EXPORT void *attach_current(void) { return monarch_current; }
EXPORT void attach_set_current(struct session *s) { monarch_current = s; }
EXPORT void attach_set_lacks_room(int is) { lacks_room = (uint32_t)is; }
EXPORT int attach_is_waiting(void) { return monarch_current == &monarch_waiting; }
EXPORT void *attach_for_change(void) { return monarch_session_for_change(); }
/* Returns the session for a read. is_later: whether at least a second has passed since the process
 * last looked for a daemon. */
EXPORT void *attach_for_reading(int is_later) {
    last_tick = is_later ? 0 : coarse_ns() / 1000000000;
    return session_for_reading();
}
EXPORT void attach_tick(void) {
    last_tick = 0;
    monarch_tick(monarch_current);
}
EXPORT void attach_forget_tick(void) { last_tick = 0; }
EXPORT int attach_second_has_passed(int is_forgotten) {
    last_tick = is_forgotten ? 0 : last_tick;
    return second_has_passed();
}
EXPORT int attach_lacks_room(void) { return monarch_lacks_room(); }
EXPORT int attach_is_off(const struct session *s) { return monarch_is_off(s); }
EXPORT void attach_switch(struct session *s, int is_off) { s->off = (uint32_t)is_off; }
EXPORT int attach_is_released(const struct session *s) { return (int)s->released; }
EXPORT void *attach_before(const struct session *s) { return s->before; }
EXPORT unsigned attach_number(const struct session *s) { return s->number; }
EXPORT void attach_set_number(struct session *s, unsigned number) { s->number = number; }
EXPORT void attach_list(struct session *s, int by) { s->listings += (uint32_t)by; }
EXPORT uint64_t attach_control(const struct session *s) { return (uint64_t)s->control; }
EXPORT void attach_anew(struct session *s) { s->linked_ns = 0; }
EXPORT void attach_rights_differ(void) { monarch_rights_may_differ(); }
EXPORT uint32_t attach_end_look(uint32_t before, uint32_t look, uint32_t off) {
    struct session s = {.off = before};
    end_look(&s, look, off);
    return s.off;
}
/* Returns whether attributes_of and fstat report the same attributes of a descriptor. */
EXPORT int attach_has_attributes(int fd) {
    struct stat a, b;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    int done = attributes_of(fd, &a), there = sys_fstat(fd, &b) == 0;
    return done == there && a.st_dev == b.st_dev && a.st_ino == b.st_ino &&
           a.st_mode == b.st_mode && a.st_nlink == b.st_nlink && a.st_size == b.st_size &&
           a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}
/* Runs the library's constructor in a process named `process`. starts: whether the library begins
 * to start a daemon. Returns whether errno is unchanged. */
EXPORT int attach_load(const char *process, int starts) {
    char name[16] = "";
    sys6(SYS_prctl, PR_GET_NAME, (long)name, 0, 0, 0, 0);
    sys6(SYS_prctl, PR_SET_NAME, (long)process, 0, 0, 0, 0);
    memset(&first, 0, sizeof first);
    last_tick = lacks_room = 0;
    is_starting = starts;
    monarch_current = NULL;
    steps[0] = 0;
    errno = 54321;
    load();
    int is_same = errno == 54321;
    sys6(SYS_prctl, PR_SET_NAME, (long)name, 0, 0, 0, 0);
    return is_same;
}
EXPORT const char *attach_steps(void) { return steps; }
