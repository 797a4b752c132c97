/* Tests peers/client.c: the time limits of a link's waits, and what happens if there is no memory.
 * The clock advances only in waits. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "set_clock.h"

#define MS 1000000ULL

/* wait_for replaces poll. If nothing has arrived, it advances the clock by the limit of the wait,
 * or by `wait_ns` if that is set and shorter. Then it calls at_wait, which may send something.
 * limits: the limit of each wait [ms]. least: for each wait, how many bytes must arrive to end it
 * (SO_RCVLOWAT). */
static uint64_t wait_ns;
static int waits, limits[100], least[100], poll_errno, lowat, lowats;
static void (*at_wait)(void);
static int wait_for(struct pollfd *p, nfds_t n, int ms) {
    if (poll(p, n, 0) == 1)
        return 1;
    if (waits < 100) {
        limits[waits] = ms;
        least[waits] = lowat;
    }
    waits++;
    time_ns += wait_ns && wait_ns < (uint64_t)ms * MS ? wait_ns : (uint64_t)ms * MS;
    if (at_wait)
        at_wait();
    errno = poll_errno;
    return poll_errno ? -1 : 1;
}
/* receive replaces recv. A call that may wait does so like wait_for, and no longer than SO_RCVTIMEO
 * says. */
static int receive_ms;
static ssize_t receive(int fd, void *to, size_t n, int flags) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (!(flags & MSG_DONTWAIT) && wait_for(&p, 1, receive_ms) < 0)
        return -1;
    return recv(fd, to, n, MSG_DONTWAIT);
}
static int set_option(int fd, int level, int name, const void *value, socklen_t n) {
    const struct timeval *time = value;
    if (name == SO_RCVTIMEO)
        receive_ms = (int)(time->tv_sec * 1000 + time->tv_usec / 1000);
    if (name == SO_RCVLOWAT) {
        lowat = *(const int *)value;
        lowats++;
    }
    return setsockopt(fd, level, name, value, n);
}
static ssize_t write_result = -1;
static ssize_t write_at(int fd, const void *from, size_t n, off_t at) {
    return write_result >= 0 ? write_result : pwrite(fd, from, n, at);
}
static int lacks_memory, macs_left = 100;
static void *scarce_malloc(size_t n) { return lacks_memory ? NULL : malloc(n); }
#include "peers/mac.h"
static struct monarch_mac *scarce_mac(const unsigned char *key) {
    return macs_left-- > 0 ? monarch_mac_new(key) : NULL;
}
#include "shared/buffer.h"
static char *scarce_buffer(size_t n) { return lacks_memory ? NULL : monarch_new_buffer(n); }
#define poll wait_for
#define recv receive
#define setsockopt set_option
#define pwrite write_at
#define malloc scarce_malloc
#define monarch_mac_new scarce_mac
#define monarch_new_buffer scarce_buffer
#include "peers/client.c"
#undef recv
#undef malloc
#undef monarch_mac_new

#include "checks.h"

#define FIRST_MS 2000
#define BETWEEN_MS 1000
#define SIZE (5 * LEAST_BYTES_PER_S) /* at the least rate, an answer takes 5 s */

static const unsigned char keys[3][MONARCH_KEY_BYTES] = {"of the server", "of the client",
                                                         "of the content"};
static struct monarch_peer_keys mine;
static link_t *l;
static int server;
static struct monarch_mac *says;
static uint64_t said, began_ns;
static char all[SIZE], memory[SIZE];
static get range;

static void make(uint64_t length) {
    int ends[2], room = 4 * SIZE;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    server = ends[1];
    setsockopt(server, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    memcpy(mine.mine, keys[1], sizeof mine.mine);
    memcpy(mine.theirs, keys[0], sizeof mine.theirs);
    l = monarch_peer_link_new(ends[0], &mine, keys[2], FIRST_MS, BETWEEN_MS);
    CHECK(l);
    says = monarch_mac_new(keys[0]);
    make_bytes(7, 0, 0, all, SIZE);
    memset(memory, 0, SIZE);
    range = (get){.size = SIZE, .length = length, .memory = (uint64_t)(uintptr_t)memory};
    said = 0;
    waits = poll_errno = lowats = 0;
    wait_ns = 0;
    at_wait = NULL;
    began_ns = time_ns;
}

static void done(void) {
    monarch_peer_link_close(l);
    close(server);
    monarch_mac_free(says);
}

static uint64_t passed_ms(void) { return (time_ns - began_ns) / MS; }

static void put_bytes(const char *bytes, size_t n) {
    for (ssize_t r; n; bytes += r, n -= (size_t)r)
        CHECK((r = send(server, bytes, n, MSG_DONTWAIT)) > 0);
}

static void give(uint32_t kind, uint64_t value, const struct monarch_digest *digest) {
    struct monarch_peer_frame f = {.magic = MONARCH_PEER_FRAME, .kind = kind, .value = value};
    monarch_seal(says, said++, &f, MONARCH_SEALED_OF_FRAME, digest, f.seal);
    put_bytes((char *)&f, sizeof f);
}

static void put_sum(const char *of, uint64_t n) {
    struct monarch_digest digest;
    struct monarch_mac *content = monarch_mac_new(keys[2]);
    monarch_mac_begin(content, 0);
    monarch_mac_add(content, of, n);
    monarch_mac_end(content, digest.bytes);
    monarch_mac_free(content);
    give(MONARCH_PEER_SUM, monarch_xxh3(of, n), &digest);
}

static int fetch_it(void) { return monarch_peer_fetch(l, &range, 1, NULL, NULL, NULL); }

/* --- limits ----------------------------------------------------------------------------------- */

static void do_nothing(void) {}
static void put_one(void) { put_bytes(all, 1); }

/* A peer that sends nothing, or only an unfinished frame byte by byte, counts as late when the
 * limit for the first frame has passed. Interrupted waits do not extend the limit. */
TEST(a_peer_has_so_long_for_the_first_frame) {
    for (int way = 0; way < 4; way++)
        for (int is_small = 0; is_small < 2; is_small++) {
            make(is_small ? 100 : SIZE);
            wait_ns = way ? 300 * MS : 0;
            poll_errno = way == 1 ? EINTR : 0;
            at_wait = way == 2 ? put_one : do_nothing;
            if (way == 3)
                put_bytes(all, sizeof(struct monarch_peer_frame) - 1);
            SAME(fetch_it(), -1);
            SAME(range.status, MONARCH_PEER_TIMEOUT);
            /* the first wait for a small answer ends with its first byte, and a new wait begins */
            uint64_t more = is_small && way == 2 ? 300 : 0;
            SAME(passed_ms(), FIRST_MS + more);
            SAME(limits[0], FIRST_MS);
            done();
        }
}

/* After the first frame, the limit of each wait for a frame or for bytes is BETWEEN_MS. */
TEST(a_peer_has_so_long_between_frames) {
    for (int way = 0; way < 3; way++) {
        make(SIZE);
        give(MONARCH_PEER_DATA, 1000, NULL);
        put_bytes(all, way == 0 ? 1000 : way == 1 ? 999 : 0);
        if (way == 2) {
            wait_ns = 10 * MS;
            at_wait = put_one;
        }
        SAME(fetch_it(), -1);
        SAME(range.status, MONARCH_PEER_TIMEOUT);
        SAME(passed_ms(), BETWEEN_MS);
        SAME(range.received, 0);
        done();
    }
}

static int parts;
static uint64_t part_bytes;
static void put_part(void) {
    give(MONARCH_PEER_DATA, part_bytes, NULL);
    put_bytes(all + (uint64_t)parts * part_bytes, part_bytes);
    if ((uint64_t)++parts * part_bytes == range.length) {
        put_sum(all, range.length);
        give(MONARCH_PEER_END, MONARCH_PEER_OK, NULL);
    }
}

/* A peer must not exceed the limit of any wait, and must send at least LEAST_BYTES_PER_S on
 * average. A peer that meets both conditions is never cut off. */
TEST(an_answer_has_a_least_rate) {
    const uint64_t most_ms = FIRST_MS + BETWEEN_MS + 1000 * SIZE / LEAST_BYTES_PER_S;
    for (int is_late = 0; is_late < 2; is_late++) {
        make(SIZE);
        parts = 0;
        part_bytes = SIZE / 10;
        wait_ns = (most_ms / 10 + (is_late ? 1 : 0)) * MS;
        at_wait = put_part;
        SAME(fetch_it(), is_late ? -1 : 0);
        SAME(range.status, is_late ? MONARCH_PEER_TIMEOUT : MONARCH_PEER_OK);
        CHECK(passed_ms() == 10 * (wait_ns / MS));
        if (!is_late)
            CHECK(range.received == SIZE && memcmp(memory, all, SIZE) == 0);
        done();
    }
    make(SIZE);
    parts = 0;
    part_bytes = 1;
    wait_ns = 900 * MS;
    at_wait = put_part;
    SAME(fetch_it(), -1);
    SAME(range.status, MONARCH_PEER_TIMEOUT);
    CHECK(passed_ms() > most_ms && passed_ms() <= most_ms + 900);
    done();
}

/* A wait ends once the number of bytes that the caller waits for has arrived. This number is passed
 * to the kernel (SO_RCVLOWAT) only if it has changed. If the deadline has passed already,
 * there is no wait, and the result is TIMEOUT. */
TEST(a_wait_is_for_what_is_missing) {
    make(SIZE);
    const size_t missing[] = {40, 1, AT_A_WAKE, AT_A_WAKE, 5};
    SAME(lowat, AT_A_WAKE);
    for (int i = 0; i < 5; i++) {
        int value = 0;
        socklen_t n = sizeof value;
        SAME(await(l, missing[i], time_ns + (i ? 1 : MS)), MONARCH_PEER_OK);
        SAME(getsockopt(l->fd, SOL_SOCKET, SO_RCVLOWAT, &value, &n), 0);
        SAME(value, missing[i]);
        SAME(limits[i], 1); /* rounded up to whole milliseconds, so that no wait ends too early */
    }
    SAME(lowats, 4);
    SAME(await(l, 5, time_ns), MONARCH_PEER_TIMEOUT);
    SAME(waits, 5);
    poll_errno = ENOMEM;
    SAME(await(l, 5, time_ns + 1), MONARCH_PEER_CUT);
    done();
}

static void put_all(void) {
    put_bytes(all, range.length);
    put_sum(all, range.length);
    give(MONARCH_PEER_END, MONARCH_PEER_OK, NULL);
    at_wait = NULL;
}

/* While the bytes of a frame arrive, a wait ends when the rest of the frame has arrived, when
 * AT_A_WAKE bytes have arrived, or after WAKE_NS. */
TEST(bytes_are_received_many_at_a_time) {
    for (int is_large = 0; is_large < 2; is_large++) {
        static char much[2 * AT_A_WAKE];
        make(is_large ? sizeof much : SIZE);
        range.memory = (uint64_t)(uintptr_t)much;
        give(MONARCH_PEER_DATA, range.length, NULL);
        if (is_large)
            poll_errno = ENOMEM; /* the fetch ends with its first wait */
        at_wait = is_large ? NULL : put_all;
        SAME(fetch_it(), is_large ? -1 : 0);
        SAME(limits[0], WAKE_NS / MS);
        SAME(least[0], is_large ? AT_A_WAKE : SIZE);
        SAME(waits, 1);
        SAME(range.status, is_large ? MONARCH_PEER_CUT : MONARCH_PEER_OK);
        done();
    }
}

/* A peer that reads no requests is late, and a peer that has hung up is gone. */
TEST(a_peer_that_takes_no_request_is_late) {
    for (int is_gone = 0; is_gone < 2; is_gone++) {
        make(100);
        struct timeval t = {0, 1000};
        char block[4096] = {0};
        setsockopt(l->fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
        while (send(l->fd, block, sizeof block, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
            ;
        if (is_gone)
            shutdown(server, SHUT_RDWR);
        SAME(fetch_it(), -1);
        SAME(range.status, is_gone ? MONARCH_PEER_CUT : MONARCH_PEER_TIMEOUT);
        SAME(waits, 0);
        done();
    }
}

/* The socket of a link is in blocking mode. The limit of a receive is the limit for an answer's
 * first frame. The limit of a send is the limit of a wait between two frames. Small requests are
 * sent at once (TCP_NODELAY). */
TEST(a_links_socket_has_its_options) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), value = 0;
    struct timeval t;
    socklen_t n = sizeof t;
    set_options(fd, 1750, 3250);
    CHECK(!(fcntl(fd, F_GETFL) & O_NONBLOCK));
    SAME(getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, &n), 0);
    CHECK(t.tv_sec == 3 && t.tv_usec >= 249000 && t.tv_usec <= 260000);
    SAME(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, &n), 0);
    CHECK(t.tv_sec == 1 && t.tv_usec >= 749000 && t.tv_usec <= 760000);
    n = sizeof value;
    SAME(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &n), 0);
    CHECK(value);
    SAME(getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &value, &n), 0);
    SAME(value, AT_A_WAKE);
    close(fd);
}

/* --- want ------------------------------------------------------------------------------------- */

/* If there is no memory for a part of a link, no link is made, and the socket still belongs to the
 * caller. */
TEST(a_link_is_made_as_a_whole_or_not_at_all) {
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int way = 0; way < 4; way++) {
        lacks_memory = way == 3;
        macs_left = way;
        CHECK(!monarch_peer_link_new(fd, &mine, keys[2], 1, 1));
        CHECK(fcntl(fd, F_GETFD) >= 0);
    }
    close(fd);
}

/* If there is no memory for a buffer, a fetch sends no request. */
TEST(a_fetch_without_a_buffer_asks_for_nothing) {
    for (int is_fetch = 0; is_fetch < 2; is_fetch++) {
        make(100);
        range.received = 5;
        lacks_memory = 1;
        SAME(is_fetch ? fetch_it() : monarch_peer_take(l, &range, 0, NULL, NULL, NULL), -1);
        lacks_memory = 0;
        CHECK(range.status == MONARCH_PEER_NO_ROOM && range.error == ENOMEM && !range.received);
        char byte;
        SAME(recv(server, &byte, 1, MSG_DONTWAIT), -1);
        SAME(waits, 0);
        done();
    }
}

/* If a write to the file stores no byte and sets no error, the fetch still fails for lack of
 * room. */
TEST(a_write_of_nothing_is_an_error) {
    make(100);
    range.memory = 0;
    give(MONARCH_PEER_DATA, 100, NULL);
    put_all();
    write_result = 0;
    SAME(fetch_it(), -1);
    CHECK(range.status == MONARCH_PEER_NO_ROOM && range.error == EIO);
    done();
}
