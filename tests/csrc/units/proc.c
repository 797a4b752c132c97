#include "preload/process/proc.c"

#include <unistd.h>

#include "made.h"

struct numbers {
    int *out, n, room;
};
static void collect(int number, void *data) {
    struct numbers *all = data;
    if (all->n < all->room)
        all->out[all->n++] = number;
}
/* The next two functions list a directory of /proc in which names are numbers, and store these
 * numbers in `out`. They return how many there are, or -1 if the list is incomplete. */
EXPORT int proc_descriptors(int *out, int room) {
    struct numbers all = {out, 0, room};
    return monarch_for_descriptors(collect, &all) ? all.n : -1;
}
EXPORT int proc_numbers(const char *path, int of_descriptors, int *out, int room) {
    struct numbers all = {out, 0, room};
    return for_numbers(open_list(path), of_descriptors, collect, &all) ? all.n : -1;
}
EXPORT int proc_can_compare(void) {
    int self = (int)sys6(SYS_gettid, 0, 0, 0, 0, 0, 0);
    return sys6(SYS_kcmp, self, self, KCMP_FILES, 0, 0, 0) == 0;
}
EXPORT int proc_has_one_table(void) { return monarch_have_one_table(); }
EXPORT uint64_t proc_offset(int fd) { return monarch_offset_of(fd); }
EXPORT int proc_name(int fd, char *out) { return monarch_name_of(fd, out); }
/* Makes a call of clone that no signal can end. With CLONE_VFORK in `first`, the call lasts until
 * the child has read a byte from `fd`. Returns the child's pid. first, fourth: arguments of the
 * call. */
EXPORT int proc_wait_deeply(int fd, uint64_t first, uint64_t fourth) {
    char c;
    long child = syscall(SYS_clone, first, 0, 0, fourth, 0);
    if (child == 0)
        _exit(sys_read(fd, &c, 1) != 1);
    return (int)child;
}
EXPORT int proc_clone(void) { return SYS_clone; }
EXPORT int proc_sleeps_in(long call, uint64_t first, uint64_t fourth) {
    return monarch_sleeps_in(call, first, fourth);
}
/* Returns whether a line of /proc/.../syscall shows a certain call. first: the beginning of
 * the line, that is, the call's number and first argument. fourth: the call's fourth argument. */
EXPORT int proc_is_in_call(const char *line, const char *first, const char *fourth) {
    struct sleeper s = {.found = 0};
    put(s.first, first);
    put(s.fourth, fourth);
    return is_in_call(&s, line);
}
EXPORT void proc_text(const char *path, char *text, unsigned long room) {
    read_text(path, text, room);
}
/* Reads the file character by character, and then once more after its end. Returns the number of
 * characters. Returns -1 if the file cannot be opened, and -2 if the last read has returned a
 * character. */
EXPORT int proc_characters(const char *path, char *out) {
    struct monarch_reader r;
    int n = 0;
    if (!monarch_reader_open(&r, path))
        return -1;
    while ((out[n] = monarch_reader_next(&r)))
        n++;
    int more = monarch_reader_next(&r);
    monarch_reader_close(&r);
    return more ? -2 : n;
}
