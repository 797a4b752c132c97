/* A trial of a catalog entry: the file's copy is dropped and made again, while a program replaces
 * the file at the source. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "acts.h"
#include "site.h"
#include "trials.h"

static unsigned first_copy;
static int is_replaced; /* 1: the rename that replaces the file has returned */

static void reset_entry(void) {
    note_descriptors();
    is_replaced = 0;
    first_copy = make_present(SMALL);
    put_bytes(path_of("kept", "new"), SMALL, 2, 0, SMALL_BYTES);
}

/* Opens and reads the file, which must be the old file or the new one. If the rename had returned
 * before the open began, the file must be the new one. */
static void open_and_read(void) {
    uint64_t got[SMALL_BYTES / 8];
    int must_be_new = is_replaced, fd = open(path_of("source", names[SMALL]), O_RDONLY);
    EXPECT(fd >= 0 && read(fd, got, sizeof got) == sizeof got);
    unsigned version = version_of(SMALL, got, 0, sizeof got);
    EXPECT(version == 2 || (version == 1 && !must_be_new));
    EXPECT(close(fd) == 0);
}

static void replace_file(void) {
    EXPECT(rename(path_of("kept", "new"), path_of("source", names[SMALL])) == 0);
    is_replaced = 1;
    open_and_read();
}

/* Drops the copy and makes another one, as the engine does. The copy is published only if the file
 * that was read is still the one that the entry describes. */
static void make_anew(void) {
    uint64_t bytes[SMALL_BYTES / 8];
    set_word(SMALL, MONARCH_ABSENT, 0);
    drop_copy(first_copy);
    step();
    int fd = raw_open(path_of("source", names[SMALL]), O_RDONLY);
    step();
    EXPECT(fd >= 0 && syscall(SYS_pread64, fd, bytes, sizeof bytes, 0) == sizeof bytes);
    step();
    struct stat st;
    EXPECT(syscall(SYS_fstat, fd, &st) == 0);
    syscall(SYS_close, fd);
    if (st.st_ino != entry_of(SMALL)->ino)
        return;
    unsigned copy = make_copy(SMALL, version_of(SMALL, bytes, 0, sizeof bytes), SMALL_BYTES);
    set_word(SMALL, MONARCH_FILLING, copy);
    publish_copy(SMALL, copy);
}

const struct trial entry_trials[] = {
    {"entry", reset_entry, {open_and_read, replace_file, make_anew}, check_descriptors},
    {0},
};
