#include "short_io.h"

/* sent_bytes: the size of each message that was sent. sent_after: how many pieces had arrived
 * before each message was sent. */
static size_t sent_bytes[16];
static int sent_after[16], sends, arrivals;
static ssize_t noted_send(int fd, const void *from, size_t n, int flags) {
    if (sends < 16) {
        sent_bytes[sends] = n;
        sent_after[sends++] = arrivals;
    }
    return short_send(fd, from, n, flags);
}
#undef send
#define send noted_send
#include "peers/client.c"

#include <sys/wait.h>

#include "checks.h"

#define SIZE (3 * MONARCH_PEER_CHUNK)

static const unsigned char keys[3][MONARCH_KEY_BYTES] = {"of the server", "of the client",
                                                         "of the content"};
static struct monarch_peer_keys mine;
static link_t *l;
static int server, to;
static struct monarch_mac *says, *hears, *content;
static uint64_t said, heard;
static char all[SIZE], memory[SIZE];

/* The pieces that arrived, in order, each with its sum and digest. */
static struct {
    uint64_t which, first, bytes, sum;
    unsigned char digest[MONARCH_MAC_BYTES];
} pieces[64];
static void arrived(void *arg, uint64_t which, uint64_t first, uint64_t bytes, uint64_t sum,
                    const unsigned char *digest) {
    CHECK(arg == pieces && arrivals < 64);
    pieces[arrivals].which = which;
    pieces[arrivals].first = first;
    pieces[arrivals].bytes = bytes;
    pieces[arrivals].sum = sum;
    memcpy(pieces[arrivals++].digest, digest, MONARCH_MAC_BYTES);
}

static void make(void) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    server = ends[1];
    memcpy(mine.mine, keys[1], sizeof mine.mine);
    memcpy(mine.theirs, keys[0], sizeof mine.theirs);
    l = monarch_peer_link_new(ends[0], &mine, keys[2], 2000, 1000);
    CHECK(l);
    says = monarch_mac_new(keys[0]);
    hears = monarch_mac_new(keys[1]);
    content = monarch_mac_new(keys[2]);
    to = open("to", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    make_bytes(7, 0, 0, all, SIZE);
    memset(memory, 0, SIZE);
    said = heard = 0;
    arrivals = 0;
}

static void done(void) {
    monarch_peer_link_close(l);
    close(server);
    close(to);
    monarch_mac_free(says);
    monarch_mac_free(hears);
    monarch_mac_free(content);
}

static void put_bytes(const char *bytes, size_t n) {
    for (ssize_t r; n; bytes += r, n -= (size_t)r)
        CHECK((r = write(server, bytes, n)) > 0);
}

static struct monarch_peer_frame frame_of(uint32_t kind, uint64_t tag, uint64_t value,
                                          const struct monarch_digest *digest) {
    struct monarch_peer_frame f = {
        .magic = MONARCH_PEER_FRAME, .kind = kind, .tag = tag, .value = value};
    monarch_seal(says, said++, &f, MONARCH_SEALED_OF_FRAME, digest, f.seal);
    return f;
}

static void give(uint32_t kind, uint64_t tag, uint64_t value) {
    struct monarch_peer_frame f = frame_of(kind, tag, value, NULL);
    put_bytes((char *)&f, sizeof f);
}

static void put_sum(uint64_t tag, const char *of, uint64_t n, uint64_t wrong) {
    struct monarch_digest digest;
    monarch_mac_begin(content, 0);
    monarch_mac_add(content, of, n);
    monarch_mac_end(content, digest.bytes);
    struct monarch_peer_frame f =
        frame_of(MONARCH_PEER_SUM, tag, monarch_xxh3(of, n) + wrong, &digest);
    put_bytes((char *)&f, sizeof f);
}

/* Sends n bytes of the file, from byte `first` on, in DATA frames of `most` bytes (the last frame
 * may be shorter). Then sends the sum of these n bytes. */
static void put_piece(uint64_t tag, uint64_t first, uint64_t n, uint64_t most) {
    for (uint64_t done = 0, part; done < n; done += part) {
        part = n - done < most ? n - done : most;
        give(MONARCH_PEER_DATA, tag, part);
        put_bytes(all + first + done, part);
    }
    put_sum(tag, all + first, n, 0);
}

static get range(uint64_t first, uint64_t length, int in_memory) {
    return (get){.path_hash = 5,
                 .size = SIZE,
                 .mtime_ns = -6,
                 .source = 2,
                 .first = first,
                 .length = length,
                 .memory = in_memory ? (uint64_t)(uintptr_t)memory : 0,
                 .to = to,
                 .at = 11,
                 .status = 99,
                 .error = 99};
}

static int fetch_all(get *gets, uint64_t n) {
    return monarch_peer_fetch(l, gets, n, NULL, arrived, pieces);
}

/* Checks the received bytes of the range, which are in memory or in the file. */
static void check_range(const get *g) {
    static char read_back[SIZE];
    const char *is = memory;
    if (!g->memory) {
        SAME((pread)(to, read_back, g->received, (off_t)g->at), g->received);
        is = read_back;
    }
    check_bytes(7, 0, g->first, is, g->received);
}

/* A request states everything that the caller asks for. The seal also covers the request's sequence
 * number. */
TEST(a_request_says_what_is_asked_for) {
    make();
    struct monarch_peer_request q;
    for (unsigned flags = 0; flags < 8; flags++) {
        get g = range(100 + flags, 20, 1);
        g.is_awaited = flags & 1 ? 7 : 0;
        g.is_doubted = flags & 2 ? 7 : 0;
        g.is_owner = flags & 4 ? 7 : 0;
        uint64_t tag = 99;
        SAME(monarch_peer_request(l, &g, &tag), 0);
        SAME(tag, flags);
        SAME(read(server, &q, sizeof q), sizeof q);
        CHECK(q.magic == MONARCH_PEER_REQUEST && q.tag == tag && q.source == 2);
        CHECK(q.path_hash == 5 && q.size == SIZE && q.mtime_ns == -6);
        CHECK(q.first == 100 + flags && q.length == 20);
        CHECK(q.is_awaited == (flags & 1) && q.is_doubted == (flags >> 1 & 1));
        CHECK(q.is_owner == flags >> 2);
        CHECK(monarch_is_sealed(hears, heard++, &q, MONARCH_SEALED_OF_REQUEST, NULL, q.seal));
    }
    done();
}

static const uint64_t lengths[] = {0,
                                   1,
                                   MONARCH_PEER_SMALL,
                                   MONARCH_PEER_SMALL + 1,
                                   MONARCH_PEER_CHUNK,
                                   MONARCH_PEER_CHUNK + 1,
                                   2 * MONARCH_PEER_CHUNK + 5};

/* All bytes of a range arrive, whether they are stored in memory or in the file. This holds however
 * the answer is divided into frames, and however few bytes the kernel moves at a time. Each piece
 * is reported once, with its sum and digest. */
TEST(a_range_arrives_however_it_is_received) {
    const size_t moved[] = {0, 41, 1000, 300000};
    for (int in_memory = 0; in_memory < 2; in_memory++)
        for (int way = 0; way < 4; way++)
            for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
                uint64_t n = lengths[i], first = 1000 + i;
                if (way == 1 && n > 5000)
                    continue;
                make();
                pid_t child = fork(); /* sends the answer, which may exceed the socket's buffer */
                if (child == 0) {
                    for (uint64_t at = 0; at < n; at += 200000)
                        put_piece(0, first + at, n - at < 200000 ? n - at : 200000,
                                  way ? 70000 : SIZE);
                    give(MONARCH_PEER_END, 0, MONARCH_PEER_OK);
                    _exit(0);
                }
                get g = range(first, n, in_memory);
                most_moved = moved[way];
                SAME(fetch_all(&g, 1), 0);
                most_moved = 0;
                SAME(g.status, MONARCH_PEER_OK);
                SAME(g.received, n);
                SAME(g.error, 0);
                SAME(arrivals, (n + 199999) / 200000);
                for (int k = 0; k < arrivals; k++) {
                    uint64_t at = (uint64_t)k * 200000, size = n - at < 200000 ? n - at : 200000;
                    struct monarch_digest digest;
                    SAME(pieces[k].which, 0);
                    SAME(pieces[k].first, at);
                    SAME(pieces[k].bytes, size);
                    SAME(pieces[k].sum, monarch_xxh3(all + first + at, size));
                    monarch_mac_begin(content, 0);
                    monarch_mac_add(content, all + first + at, size);
                    monarch_mac_end(content, digest.bytes);
                    CHECK(memcmp(&digest, pieces[k].digest, sizeof digest) == 0);
                }
                check_range(&g);
                CHECK(waitpid(child, NULL, 0) == child);
                SAME(monarch_peer_link_frames(l) > 0, 1);
                done();
            }
}

static void count_arrival(void *arg, uint64_t which, uint64_t first, uint64_t bytes, uint64_t sum,
                          const unsigned char *digest) {
    SAME(which, arrivals);
    arrivals++;
}

/* Further requests are sent before earlier ones are answered, and many are sent in one call. At
 * most AHEAD requests are unanswered at any time. */
TEST(requests_are_sent_ahead_up_to_a_limit) {
    enum { RANGES = 3 * AHEAD + 5 };
    static get gets[RANGES];
    make();
    for (uint64_t i = 0; i < RANGES; i++) {
        gets[i] = range(i, 1, 1);
        gets[i].memory += i;
    }
    pid_t child = fork();
    if (child == 0) {
        for (uint64_t i = 0; i < RANGES; i++) {
            put_piece(i, i, 1, 1);
            give(MONARCH_PEER_END, i, MONARCH_PEER_OK);
        }
        _exit(0);
    }
    sends = 0;
    SAME(monarch_peer_fetch(l, gets, RANGES, NULL, count_arrival, NULL), 0);
    SAME(arrivals, RANGES);
    SAME(memcmp(memory, all, RANGES), 0);
    size_t sent = 0;
    for (int i = 0; i < sends; i++) {
        size_t n = sent_bytes[i] / sizeof(struct monarch_peer_request);
        sent += n;
        CHECK(n >= AHEAD / 2 || sent == RANGES);
        CHECK(sent - (size_t)sent_after[i] <= AHEAD && sent_after[i] <= (i + 1) * AHEAD / 2);
    }
    SAME(sent, RANGES);
    for (uint64_t i = 0; i < RANGES; i++) {
        struct monarch_peer_request q;
        SAME((recv)(server, &q, sizeof q, MSG_WAITALL), sizeof q);
        CHECK(q.tag == i && q.first == i);
        CHECK(monarch_is_sealed(hears, heard++, &q, MONARCH_SEALED_OF_REQUEST, NULL, q.seal));
    }
    CHECK(waitpid(child, NULL, 0) == child);
    done();
}

/* An answer may end only with a status that concerns the file. It may end with OK only if all bytes
 * have arrived. */
TEST(an_answer_ends_with_a_status_of_the_file) {
    const struct {
        uint64_t status;
        int can_end;
    } cases[] = {{MONARCH_PEER_OK, 0},
                 {MONARCH_PEER_REFUSED, 1},
                 {MONARCH_PEER_UNKNOWN_FILE, 1},
                 {MONARCH_PEER_CHANGED, 1},
                 {MONARCH_PEER_COMING, 1},
                 {MONARCH_PEER_TIMEOUT, 1},
                 {MONARCH_PEER_CUT, 0},
                 {MONARCH_PEER_WRONG_BYTES, 0},
                 {MONARCH_PEER_NO_ROOM, 0},
                 {MONARCH_PEER_FORGED, 0},
                 {MONARCH_PEER_OTHER_NODE, 0},
                 {MONARCH_PEER_LATER, 0},
                 {MONARCH_PEER_MOVED - 1, 0},
                 {MONARCH_PEER_MOVED, 1},
                 {2 * MONARCH_PEER_MOVED - 1, 1},
                 {2 * MONARCH_PEER_MOVED, 0},
                 {1ULL << 32, 0}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int received = 0; received < 2; received++) {
            make();
            if (received)
                put_piece(0, 0, 50, 50);
            give(MONARCH_PEER_END, 0, cases[i].status);
            get g = range(0, 100, 1);
            SAME(fetch_all(&g, 1), cases[i].can_end ? 0 : -1);
            SAME(g.status, cases[i].can_end ? cases[i].status : MONARCH_PEER_CUT);
            SAME(g.received, received ? 50 : 0);
            done();
        }
}

/* Anything that an honest server would not send breaks the link. The status of the range says what
 * was wrong. */
TEST(a_wrong_answer_breaks_the_link) {
    const unsigned right[] = {MONARCH_PEER_CUT,    MONARCH_PEER_CUT,         MONARCH_PEER_CUT,
                              MONARCH_PEER_FORGED, MONARCH_PEER_WRONG_BYTES, MONARCH_PEER_FORGED,
                              MONARCH_PEER_CUT,    MONARCH_PEER_WRONG_BYTES, MONARCH_PEER_FORGED,
                              MONARCH_PEER_CUT,    MONARCH_PEER_CUT,         MONARCH_PEER_CUT};
    for (int way = 0; way < 12; way++) {
        make();
        struct monarch_peer_frame f = frame_of(MONARCH_PEER_DATA, way == 0, 100, NULL);
        if (way == 1)
            f.magic++;
        if (way == 2)
            f = (said = 0, frame_of(MONARCH_PEER_DATA, 0, 101, NULL)); /* too many bytes */
        if (way == 3)
            f.seal[15] ^= 1;
        if (way == 6)
            f = (said = 0, frame_of(MONARCH_PEER_DATA, 0, 0, NULL));
        if (way == 9)
            f = (said = 0, frame_of(MONARCH_PEER_END + 1, 0, 0, NULL)); /* no such kind */
        if (way == 8)
            /* the seal is that of the frame after the expected one */
            f = (said = 1, frame_of(MONARCH_PEER_DATA, 0, 100, NULL));
        if (way == 7)
            said = 0;
        else
            put_bytes((char *)&f, sizeof f);
        if (way != 7)
            put_bytes(all, 100);
        if (way == 5) {
            struct monarch_digest none = {{0}};
            f = frame_of(MONARCH_PEER_SUM, 0, monarch_xxh3(all, 100), &none);
            put_bytes((char *)&f, sizeof f);
        } else if (way < 10) {
            put_sum(0, all, way == 7 ? 0 : 100, way == 4);
        }
        if (way == 10)
            give(MONARCH_PEER_END, 0, MONARCH_PEER_OK); /* without a sum */
        if (way == 11)
            shutdown(server, SHUT_WR);
        get g = range(0, 100, 1);
        SAME(fetch_all(&g, 1), -1);
        SAME(g.status, right[way]);
        SAME(g.received, 0);
        SAME(arrivals, 0);
        done();
    }
}

/* When a link breaks, a range with a complete answer keeps its status. All other ranges get the
 * status CUT. */
TEST(ranges_without_an_answer_are_cut) {
    make();
    get gets[] = {range(0, 10, 1), range(10, 10, 1), range(20, 10, 1)};
    put_piece(0, 0, 10, 10);
    give(MONARCH_PEER_END, 0, MONARCH_PEER_OK);
    give(MONARCH_PEER_END, 1, MONARCH_PEER_LATER);
    SAME(fetch_all(gets, 3), -1);
    CHECK(gets[0].status == MONARCH_PEER_OK && gets[1].status == MONARCH_PEER_CUT &&
          gets[2].status == MONARCH_PEER_CUT);
    CHECK(gets[0].received == 10 && !gets[1].received && !gets[2].received && !gets[2].error);
    done();
}

/* If a peer sends more than was asked for, the answer is still valid, but the link is shut down. */
TEST(a_peer_that_sends_too_much_is_cut) {
    for (int more = 0; more < 2; more++) {
        make();
        get g = range(0, 10, 1);
        give(MONARCH_PEER_END, 0, MONARCH_PEER_COMING);
        if (more)
            put_bytes(all, 1);
        SAME(fetch_all(&g, 1), 0);
        SAME(g.status, MONARCH_PEER_COMING);
        char byte;
        ssize_t r = (recv)(server, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
        SAME(r, more ? sizeof byte : 1); /* the request is there */
        struct pollfd p = {.fd = server, .events = POLLRDHUP};
        SAME(poll(&p, 1, 0), more);
        done();
    }
}

/* If bytes cannot be stored, the range gets the status NO_ROOM and the errno of the write. */
TEST(bytes_without_room_are_told_apart) {
    make();
    get g = range(0, 100, 0);
    g.to = open("to", O_RDONLY | O_CLOEXEC);
    put_piece(0, 0, 100, 100);
    give(MONARCH_PEER_END, 0, MONARCH_PEER_OK);
    SAME(fetch_all(&g, 1), -1);
    SAME(g.status, MONARCH_PEER_NO_ROOM);
    SAME(g.error, EBADF);
    close(g.to);
    done();
}

/* A peer is late if it exceeds the time limit of a wait. The limit for the first frame
 * (first_byte_ms) differs from the limit for each later wait (between_ms). */
TEST(a_peer_that_stops_sending_is_late) {
    for (int way = 0; way < 4; way++) {
        make();
        l->first_byte_ms = way == 0 ? 30 : 60000;
        l->between_ms = way == 0 ? 60000 : 30;
        get g = range(0, way == 3 ? MONARCH_PEER_SMALL + 100 : 100, 1);
        if (way) {
            give(MONARCH_PEER_DATA, 0, 100);
            put_bytes(all, way == 1 ? 50 : 100);
        }
        uint64_t began = monarch_now_ns();
        SAME(fetch_all(&g, 1), -1);
        uint64_t took = monarch_now_ns() - began;
        SAME(g.status, MONARCH_PEER_TIMEOUT);
        CHECK(took >= 29000000 && took < 20000000000);
        done();
    }
}

/* The complete answer has a time limit too, so that a peer cannot send it byte by byte forever. */
TEST(a_slow_answer_has_an_end) {
    make();
    l->buffer = memory;
    get g = range(0, 100, 1);
    struct answer a = {.g = &g, .deadline_ns = monarch_now_ns() - 1};
    l->bound_ms = 1000;
    SAME(take_data(l, &a, 100), MONARCH_PEER_TIMEOUT);
    a.deadline_ns = monarch_now_ns() + 1000000000000;
    put_bytes(all, 100);
    SAME(take_data(l, &a, 100), MONARCH_PEER_OK);
    SAME(a.came, 100);
    SAME(take_data(l, &a, 1), MONARCH_PEER_CUT); /* the request was for 100 bytes only */
    l->buffer = NULL;
    done();
}

/* If no part of a request fits into the socket, the request counts as not sent, and the link can
 * still be used. If only a part was sent, the link ends. */
TEST(a_request_is_sent_as_a_whole_or_not_at_all) {
    for (int way = 0; way < 2; way++) {
        make();
        get g = range(0, 10, 1);
        uint64_t tag = 77;
        most_moved = way ? 79 : 1000;
        moves = way ? 1 : 0; /* the send is interrupted (way 0) or short (way 1) */
        SAME(monarch_peer_request(l, &g, &tag), -1);
        most_moved = 0;
        SAME(tag, 77);
        SAME(l->tag, 0);
        struct pollfd p = {.fd = server, .events = POLLRDHUP};
        SAME(poll(&p, 1, 0), way);
        done();
    }
}
