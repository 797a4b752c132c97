/* Trials in which the library hands over a descriptor to the daemon while another thread locks the
 * descriptor's file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/pool.h"
#include "preload/session/segments.h"
#include "shared/claims.h"
#include "site.h"
#include "trials.h"

/* the longest time [ns] for which flock waits for the daemon to close its descriptor of the file */
#define RECALL_NS 50000000ULL

static int held_fd, again_fd, socket_fd;
static unsigned programs_done;

/* Binds the daemon's socket for handovers, and opens SMALL, which the program then reads at the
 * source. */
static void reset_direct(void) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    note_descriptors();
    programs_done = 0;
    site.control->handed_bytes = MOST_BYTES;
    snprintf(at.sun_path, sizeof at.sun_path, "%s/handovers.%u", monarch_session_dir(),
             (unsigned)(site.ids[SMALL] % MONARCH_HANDOVER_SOCKETS));
    syscall(SYS_unlinkat, AT_FDCWD, at.sun_path, 0);
    socket_fd = (int)syscall(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    EXPECT(syscall(SYS_bind, socket_fd, &at, sizeof at) == 0);
    held_fd = again_fd = open(path_of("source", names[SMALL]), O_RDONLY);
    EXPECT(held_fd >= 0);
}

/* Like reset_direct, but the lock is taken through a duplicate of the descriptor. */
static void reset_duplicate(void) {
    reset_direct();
    again_fd = dup(held_fd);
    EXPECT(again_fd >= 0);
}

static void read_and_hand_over(void) {
    uint64_t got[SMALL_BYTES / 8];
    ssize_t n = read(held_fd, got, sizeof got);
    if (n >= 0)
        version_of(SMALL, got, 0, (uint64_t)n);
    EXPECT(n == sizeof got || (n < 0 && errno == EBADF));
    programs_done++;
    step();
}

/* Locks the file, and closes all of the program's descriptors of the open file. The lock must then
 * have ended, with one exception. flock() waits at most RECALL_NS for the daemon to close its own
 * descriptor. If the daemon takes longer, the lock lasts until the daemon has closed its
 * descriptor. */
static void lock_and_close(void) {
    uint64_t began_ns = now_ns();
    EXPECT(flock(again_fd, LOCK_EX) == 0);
    int was_slow = now_ns() - began_ns >= RECALL_NS;
    EXPECT(close(held_fd) == 0);
    EXPECT(again_fd == held_fd || close(again_fd) == 0);
    int fd = raw_open(path_of("source", names[SMALL]), O_RDONLY);
    EXPECT(syscall(SYS_flock, fd, LOCK_EX | LOCK_NB) == 0 || was_slow);
    syscall(SYS_close, fd);
    programs_done++;
    step();
}

/* Receives the next descriptor that was handed over; returns -1 if there is none. */
static int receive(void) {
    char what[sizeof(struct monarch_handover)];
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } room;
    struct iovec part = {what, sizeof what};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &room, .msg_controllen = sizeof room};
    int fd = -1;
    if (syscall(SYS_recvmsg, socket_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) > 0)
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    if (fd >= 0)
        note_met(HANDED_OVER);
    return fd;
}

/* Acts as the daemon: keeps each descriptor for some time, or until the descriptor is recalled.
 * Then closes the descriptor and ends the claim of the file. */
static void take_descriptors(void) {
    for (int fd; (fd = receive()) >= 0 || programs_done < 2;) {
        for (int n = 0; fd >= 0 && n < 3; n++)
            if (!monarch_is_recalled(site.clients, site.ids[SMALL], now_ns()))
                step_waiting();
        if (fd >= 0) {
            syscall(SYS_close, fd);
            step();
            monarch_end_claim(site.clients, site.ids[SMALL]);
        }
        step_waiting();
    }
    syscall(SYS_close, socket_fd);
}

static void set_flag(void) {
    EXPECT(fcntl(held_fd, F_SETFD, FD_CLOEXEC) == 0 || errno == EBADF);
    read_and_hand_over();
}

const struct trial handover_trials[] = {
    {"handover",
     reset_duplicate,
     {read_and_hand_over, lock_and_close, take_descriptors},
     check_descriptors},
    {"flags", reset_direct, {set_flag, lock_and_close, take_descriptors}, check_descriptors},
    {0},
};
