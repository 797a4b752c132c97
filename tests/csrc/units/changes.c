#include "within.h"

#include "preload/changes/record.c"

#include "made.h"

EXPORT int changes_are_guarded(void) { return are_guarded(); }
EXPORT int changes_has_changed(struct session *s, uint64_t id) {
    return monarch_entry_is_changed(s, &monarch_entries(s->catalog)[id]);
}
EXPORT int changes_path(int dir, const char *path, int follow) {
    return monarch_changed_path(dir, path, follow);
}
EXPORT int changes_file(int dir, const char *path, int follow) {
    return monarch_changed_file(dir, path, follow);
}
EXPORT void changes_known(int dir, const char *path, int follow) {
    monarch_changed_known(dir, path, follow);
}
EXPORT void changes_tree(int dir, const char *path) { monarch_changed_tree(dir, path); }
EXPORT void changes_names(int dir, const char *path) { monarch_changed_names(dir, path); }
/* Does the same as changes_names, but calls monarch_changed_names_of, which may overwrite the
 * path. */
EXPORT void changes_names_of(int dir, const char *path) {
    char text[MONARCH_PATH_MAX];
    if (strlen(path) < sizeof text)
        monarch_changed_names_of(dir, strcpy(text, path));
}
EXPORT int changes_names_copy(const char *path, char *real) {
    return monarch_names_copy(path, real);
}
EXPORT void changes_fd(int fd) { monarch_changed_fd(fd); }
/* These two functions write to `out` the path with which the program's call is to be made. */
EXPORT void changes_path_to_change(int dir, const char *path, int follow, char *out) {
    char real[MONARCH_PATH_MAX];
    const char *to = monarch_path_to_change(dir, path, follow, real);
    strcpy(out, to ? to : "");
}
EXPORT int changes_fd_to_change(int fd, char *out) {
    char real[MONARCH_PATH_MAX];
    const char *path = monarch_fd_to_change(fd, real);
    strcpy(out, path ? path : "");
    return path != NULL;
}
EXPORT int changes_is_copy(int fd, char *real) { return monarch_is_copy(fd, real); }
EXPORT void changes_made(int fd, const char *path, int created) {
    char real[MONARCH_PATH_MAX];
    if (created)
        monarch_made(fd, AT_FDCWD, path, real);
    else
        monarch_opened_for_change(fd, 0, AT_FDCWD, path, real);
}
