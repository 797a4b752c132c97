#include "preload/autostart/record.h"

#include <string.h>

#include "preload/session/segments.h"
#include "shared/sys.h"

/* The session's file `autostart` has a first line, and then one record for each setting (struct
 * monarch_setting) in which the configuration was read. The latest record comes first. A record has
 * one fact per line, and the first word of the line names the kind of fact. In memory, each line
 * ends with a NUL.
 *
 *   monarch autostart 1         the first line of the file
 *   config PATH                 the configuration; several configurations may share a session
 *   mounts INODE                the mount namespace in which the record was written
 *   file INODE SIZE MTIME PATH  a file that the configuration depends on; zeros: no such file
 *   value NAME=VALUE            an environment variable on which the configuration depends;
 *                               without '=': the variable was not set
 *   wish yes                    a daemon is to be started; `wish no`: it is not
 *   source PATH                 a source, without links
 *   end                         the last line of a record */
static const char first_line[] = "monarch autostart 1";

/* Returns the text after `word` and a blank, or NULL if the line does not begin with `word`. */
static const char *after(const char *line, const char *word) {
    size_t n = strlen(word);
    return strncmp(line, word, n) == 0 && line[n] == ' ' ? line + n + 1 : NULL;
}

/* Reads a number and the blank after it, and moves *at past them. */
static uint64_t number(const char **at) {
    uint64_t n = 0;
    for (; **at >= '0' && **at <= '9'; ++*at)
        n = n * 10 + (uint64_t)(**at - '0');
    *at += **at == ' ';
    return n;
}

static int is_same_file(const char *fact) {
    struct stat st;
    uint64_t ino = number(&fact), size = number(&fact), mtime_ns = number(&fact);
    if (sys_fstatat(AT_FDCWD, fact, &st, 0) != 0)
        return !ino;
    return st.st_ino == ino && (uint64_t)st.st_size == size &&
           monarch_time_ns(st.st_mtim.tv_sec, st.st_mtim.tv_nsec) == (int64_t)mtime_ns;
}

/* Returns whether the environment variable still has the value in `fact`. fact: NAME=VALUE, or NAME
 * if the variable was not set. value_of expects only the name, so the '=' is a NUL during that
 * call. */
static int is_same_value(char *fact, const char *(*value_of)(const char *name)) {
    char *value = strchr(fact, '=');
    if (!value)
        return !value_of(fact);
    *value = 0;
    const char *now = value_of(fact);
    *value = '=';
    return now && strcmp(now, value + 1) == 0;
}

static int still_holds(char *line, const struct monarch_setting *now) {
    const char *fact;
    if ((fact = after(line, "config")))
        return strcmp(fact, now->config) == 0;
    if ((fact = after(line, "mounts")))
        return number(&fact) == now->mounts;
    if ((fact = after(line, "file")))
        return is_same_file(fact);
    if ((fact = after(line, "value")))
        return is_same_value((char *)fact, now->value_of);
    return 1;
}

static char *next(char *line) { return line + strlen(line) + 1; }

/* Reads the file of the session's records into `text`, and replaces each line feed by a NUL.
 * Returns the file's size, or 0 if the file is missing, too large or incomplete. */
static size_t read_lines(char *text) {
    uint64_t size;
    int fd = monarch_open_segment("autostart", O_RDONLY, &size);
    if (fd < 0)
        return 0;
    long n = size && size < MONARCH_RECORD_BYTES ? sys_pread(fd, text, size, 0) : 0;
    sys_close(fd);
    if (n <= 0 || (uint64_t)n != size || text[n - 1] != '\n')
        return 0;
    text[n] = 0;
    for (char *at = text; (at = strchr(at, '\n'));)
        *at++ = 0;
    int is_whole = strlen(text) < (size_t)n && strcmp(text, first_line) == 0 &&
                   strcmp(text + n - sizeof "end", "end") == 0 &&
                   text[n - (long)sizeof "end" - 1] == 0;
    return is_whole ? (size_t)n : 0;
}

/* Reads the record that begins at `line`. Sets *wish to the user's wish in the record. If a fact of
 * the record does not hold in the setting `now`, sets *wish to MONARCH_WISH_UNKNOWN. Returns the
 * line after the record. */
static char *read_record(char *line, const struct monarch_setting *now, enum monarch_wish *wish) {
    *wish = MONARCH_WISH_NO;
    for (; strcmp(line, "end") != 0; line = next(line)) {
        if (*wish == MONARCH_WISH_UNKNOWN)
            continue;
        if (!still_holds(line, now))
            *wish = MONARCH_WISH_UNKNOWN;
        else if (strcmp(line, "wish yes") == 0)
            *wish = MONARCH_WISH_YES;
    }
    return next(line);
}

enum monarch_wish monarch_read_record(char *text, const struct monarch_setting *now) {
    enum monarch_wish wish = MONARCH_WISH_UNKNOWN;
    size_t size = read_lines(text);
    char *line = size ? next(text) : text, *after;
    for (; line < text + size && wish == MONARCH_WISH_UNKNOWN; line = after) {
        after = read_record(line, now, &wish);
        if (wish != MONARCH_WISH_UNKNOWN)
            memmove(text, line, (size_t)(after - line));
    }
    return wish;
}

int monarch_record_has(const char *text, const char *path) {
    for (const char *line = text; strcmp(line, "end") != 0; line += strlen(line) + 1) {
        const char *source = after(line, "source");
        size_t n = source ? strlen(source) : 0;
        if (n && strncmp(path, source, n) == 0 && path[n] == '/')
            return 1;
    }
    return 0;
}
