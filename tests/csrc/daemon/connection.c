#include "set_clock.h"
#include "short_io.h"
#undef pread /* pread is not replaced: a short read means that the file has become shorter */

#include "peers/connection.c"

#include <signal.h>

#include "checks.h"

#define BLOCK (3 * MONARCH_PEER_CHUNK / 2)
#define ROOM (4 << 20)

/* The file that is sent, the values that the callbacks return, and how often the callbacks were
 * called. */
static struct {
    int fd, is_coming, is_recorded, is_good, opens, closes, checks, hashes;
    uint64_t size, there;
    unsigned status;
} file;
static struct monarch_peer_bounds bounds = {.idle_ms = 1000, .stall_ms = 100, .wait_ms = 10};
static const unsigned char keys[3][MONARCH_KEY_BYTES] = {"of the server", "of the client",
                                                         "of the content"};
static uint64_t requests, sent;
static char buffer[MONARCH_PEER_CHUNK];
static struct monarch_peer_stage stage;
static connection c;
static int client;
static struct monarch_mac *says, *hears, *content;
static uint64_t asked, heard; /* the sequence numbers of the client's next seals */
static char got[ROOM];
static size_t got_bytes;

static enum monarch_peer_status open_it(void *arg, const struct monarch_peer_request *wanted,
                                        struct monarch_peer_opened *out) {
    CHECK(arg == &file && wanted->path_hash == 5);
    if (file.status == MONARCH_PEER_OK) {
        file.opens++;
        *out = (struct monarch_peer_opened){&file, file.fd, file.size, BLOCK};
    }
    return file.status;
}
static uint64_t available(void *arg, void *it, uint64_t at) {
    CHECK(arg == &file && it == &file && at < file.size);
    return file.there == MONARCH_PEER_NEVER || file.there > at ? file.there : at;
}
static int is_coming(void *arg) { return arg == &file && file.is_coming; }
static int find_sum(void *arg, void *it, uint64_t block, uint64_t *sum,
                    struct monarch_digest *digest) {
    CHECK(arg == &file && it == &file);
    if (!file.is_recorded)
        return 0;
    uint64_t at = block * BLOCK, n = file.size - at < BLOCK ? file.size - at : BLOCK;
    char *bytes = malloc(n);
    SAME(pread(file.fd, bytes, n, (off_t)at), n);
    *sum = monarch_xxh3(bytes, n);
    monarch_mac_begin(content, 0);
    monarch_mac_add(content, bytes, n);
    monarch_mac_end(content, digest->bytes);
    free(bytes);
    return 1;
}
static int check_it(void *arg, void *it, uint64_t block, const uint64_t *sum) {
    CHECK(arg == &file && it == &file && block < (file.size + BLOCK - 1) / BLOCK);
    file.checks++;
    file.hashes += sum != NULL;
    return sum && file.is_good;
}
static void close_it(void *arg, void *it) {
    CHECK(arg == &file && it == &file);
    file.closes++;
}
static const struct monarch_peer_files files = {&file,    open_it,  available, is_coming,
                                                find_sum, check_it, close_it};

static void make(uint64_t size) {
    int ends[2];
    if (file.fd >= 0)
        close(file.fd);
    unlink("file");
    memset(&file, 0, sizeof file);
    file.fd = make_file("file", size, 7);
    file.size = file.there = size;
    file.is_good = 1;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    client = ends[1];
    c = (connection){
        .fd = ends[0], .hears = monarch_mac_new(keys[1]), .says = monarch_mac_new(keys[0])};
    hears = monarch_mac_new(keys[0]);
    says = monarch_mac_new(keys[1]);
    content = monarch_mac_new(keys[2]);
    stage = (struct monarch_peer_stage){
        &files, &bounds, &requests, &sent, buffer, monarch_mac_new(keys[2]), 0};
    asked = heard = requests = sent = got_bytes = 0;
}

static void done(void) {
    monarch_peer_let_go(&c, &stage);
    SAME(file.closes, file.opens);
    close(c.fd);
    close(client);
    struct monarch_mac *all[] = {c.hears, c.says, hears, says, content, stage.content};
    for (int i = 0; i < 6; i++)
        monarch_mac_free(all[i]);
}

static struct monarch_peer_request request_of(uint64_t first, uint64_t length) {
    return (struct monarch_peer_request){.magic = MONARCH_PEER_REQUEST,
                                         .tag = 40 + asked,
                                         .path_hash = 5,
                                         .size = file.size,
                                         .first = first,
                                         .length = length};
}

static void put(struct monarch_peer_request *q) {
    monarch_seal(says, asked++, q, MONARCH_SEALED_OF_REQUEST, NULL, q->seal);
    SAME(write(client, q, sizeof *q), sizeof *q);
}

static void collect(void) {
    for (ssize_t n; (n = read(client, got + got_bytes, ROOM - got_bytes)) > 0;)
        got_bytes += (size_t)n;
}

/* Runs steps as long as the connection waits only for room in its socket or for its next turn.
 * Returns the first other state. */
static io_state run_it(void) {
    for (;;) {
        io_state state = monarch_peer_step(&c, &stage);
        collect();
        if (state != MONARCH_PEER_TO_SEND && state != MONARCH_PEER_TO_YIELD)
            return state;
    }
}

/* Reads one answer, which starts with byte number `first` of the file. Checks each frame, and sets
 * *bytes to the number of bytes that the sums in the answer cover. Returns the status that ends the
 * answer. */
static uint64_t answer(uint64_t first, uint64_t tag, uint64_t *bytes) {
    struct monarch_peer_frame f;
    struct monarch_digest digest;
    char *of_piece = malloc(file.size + 1);
    uint64_t at = first, piece = first;
    for (size_t i = 0;;) {
        CHECK(got_bytes - i >= sizeof f);
        memcpy(&f, got + i, sizeof f);
        i += sizeof f;
        CHECK(f.magic == MONARCH_PEER_FRAME && f.tag == tag);
        if (f.kind == MONARCH_PEER_DATA) {
            CHECK(f.value && got_bytes - i >= f.value && at + f.value <= file.size);
            check_bytes(7, 0, at, got + i, f.value);
            memcpy(of_piece + (at - piece), got + i, f.value);
            at += f.value;
            i += f.value;
        } else if (f.kind == MONARCH_PEER_SUM) {
            SAME(f.value, monarch_xxh3(of_piece, at - piece));
            CHECK(at % BLOCK == 0 || at == first + *bytes || at <= file.size);
            monarch_mac_begin(content, 0);
            monarch_mac_add(content, of_piece, at - piece);
            monarch_mac_end(content, digest.bytes);
            /* a sum covers bytes of only one block */
            CHECK(at > piece && (piece / BLOCK == (at - 1) / BLOCK));
            piece = at;
        }
        CHECK(monarch_is_sealed(hears, heard++, &f, MONARCH_SEALED_OF_FRAME,
                                f.kind == MONARCH_PEER_SUM ? &digest : NULL, f.seal));
        if (f.kind == MONARCH_PEER_END) {
            memmove(got, got + i, got_bytes -= i);
            *bytes = piece - first;
            free(of_piece);
            return f.value;
        }
    }
}

static const uint64_t ranges[][2] = {{0, 0},
                                     {0, 1},
                                     {7, MONARCH_PEER_SMALL},
                                     {7, MONARCH_PEER_SMALL + 1},
                                     {0, BLOCK},
                                     {BLOCK - 1, 2},
                                     {BLOCK, BLOCK},
                                     {1, 2 * BLOCK},
                                     {2 * BLOCK, 100},
                                     {2 * BLOCK + 100, 0}};

/* Each range arrives as requested, with correct sums and seals. This holds however few bytes the
 * socket takes at a time, and even if the file's bytes become available little by little. */
TEST(a_range_arrives_however_it_is_sent) {
    const size_t moved[] = {0, 7, 39, 40, 41, 60, 80, 120, 121, 40000, 500000};
    for (unsigned way = 0; way < sizeof moved / sizeof *moved; way++) {
        make(2 * BLOCK + 100);
        file.is_recorded = way % 2;
        for (unsigned i = 0; i < sizeof ranges / sizeof *ranges; i++) {
            uint64_t first = ranges[i][0], n = ranges[i][1], bytes = 0;
            if (n > 1000 && moved[way] && moved[way] < 1000)
                n = 1000; /* if each call moves few bytes, a small range is enough */
            struct monarch_peer_request q = request_of(first, n);
            put(&q);
            most_moved = moved[way];
            if (way % 3 == 2) {
                file.there = first;
                while (file.there < file.size && file.there < first + n) {
                    SAME(run_it(), MONARCH_PEER_TO_WAIT);
                    file.there += n / 3 + 1;
                }
                file.there = file.there < file.size ? file.there : file.size;
            }
            SAME(run_it(), MONARCH_PEER_TO_READ);
            most_moved = 0;
            SAME(answer(first, q.tag, &bytes), MONARCH_PEER_OK);
            SAME(bytes, n);
            SAME(got_bytes, 0);
            SAME(file.closes, file.opens);
        }
        SAME(requests, sizeof ranges / sizeof *ranges);
        done();
    }
}

/* Only the bytes of files are counted. The frames that are sent with them are not. */
TEST(the_bytes_of_files_are_counted) {
    make(2 * BLOCK);
    uint64_t all = 0, bytes;
    for (int i = 0; i < 3; i++) {
        uint64_t n = i == 0 ? 100 : i == 1 ? MONARCH_PEER_SMALL + 1 : 2 * BLOCK;
        struct monarch_peer_request q = request_of(0, n);
        put(&q);
        most_moved = i ? 0 : 30;
        run_it();
        most_moved = 0;
        answer(0, q.tag, &bytes);
        SAME(sent, all += n);
    }
    done();
}

/* A range that does not lie in the file is refused. If the node cannot open the file, the status
 * says why. */
TEST(what_cannot_be_sent_is_answered) {
    make(1000);
    const uint64_t bad[][2] = {{0, 1001}, {1001, 0}, {1000, 1}, {999, 2}, {5, UINT64_MAX - 2}};
    uint64_t bytes;
    for (int i = 0; i < 5; i++) {
        struct monarch_peer_request q = request_of(bad[i][0], bad[i][1]);
        put(&q);
        SAME(run_it(), MONARCH_PEER_TO_READ);
        SAME(answer(0, q.tag, &bytes), MONARCH_PEER_REFUSED);
        SAME(file.opens, 0);
    }
    const unsigned status[] = {MONARCH_PEER_UNKNOWN_FILE, MONARCH_PEER_CHANGED,
                               MONARCH_PEER_MOVED + 7};
    for (int i = 0; i < 3; i++) {
        struct monarch_peer_request q = request_of(0, 10);
        file.status = status[i];
        put(&q);
        SAME(run_it(), MONARCH_PEER_TO_READ);
        SAME(answer(0, q.tag, &bytes), status[i]);
        CHECK(bytes == 0 && file.opens == 0);
    }
    SAME(sent, 0);
    done();
}

/* The connection ends without an answer if a request has a wrong magic number, is forged or is
 * repeated, or if the client has stopped sending. */
TEST(a_bad_request_ends_the_connection) {
    for (int way = 0; way < 4; way++) {
        make(1000);
        struct monarch_peer_request q = request_of(0, 10);
        if (way == 0) {
            q.magic++;
            SAME(write(client, &q, 4), 4); /* four bytes are enough: the magic number is wrong */
        } else if (way == 1) {
            monarch_seal(says, 0, &q, MONARCH_SEALED_OF_REQUEST, NULL, q.seal);
            q.length++;
            SAME(write(client, &q, sizeof q), sizeof q);
        } else if (way == 2) {
            uint64_t bytes;
            put(&q);
            SAME(run_it(), MONARCH_PEER_TO_READ);
            SAME(answer(0, q.tag, &bytes), MONARCH_PEER_OK);
            SAME(write(client, &q, sizeof q), sizeof q); /* the same request once more */
        } else {
            shutdown(client, SHUT_WR);
        }
        SAME(run_it(), MONARCH_PEER_TO_CLOSE);
        SAME(got_bytes, 0);
        done();
    }
}

/* A request may arrive byte by byte, but its time limit runs from its first byte. */
TEST(a_request_that_comes_slowly_gets_no_more_time) {
    make(1000);
    struct monarch_peer_request q = request_of(0, 10);
    uint64_t bytes, began = time_ns;
    monarch_seal(says, asked++, &q, MONARCH_SEALED_OF_REQUEST, NULL, q.seal);
    for (size_t i = 0; i < sizeof q; i++) {
        SAME(run_it(), MONARCH_PEER_TO_READ);
        SAME(c.got, i);
        if (i)
            SAME(c.deadline_ns, began + bounds.stall_ms * 1000000ULL);
        SAME(write(client, (char *)&q + i, 1), 1);
        time_ns += i ? 1000 : 0;
    }
    SAME(run_it(), MONARCH_PEER_TO_READ);
    SAME(answer(0, q.tag, &bytes), MONARCH_PEER_OK);
    SAME(c.deadline_ns, time_ns + bounds.idle_ms * 1000000ULL);
    done();
}

/* A request for bytes that are not available yet waits for a while. After this time, the answer
 * ends with the bytes that have become available by then. Its status says whether it is worth
 * asking again. */
TEST(a_wait_for_bytes_has_an_end) {
    for (int way = 0; way < 4; way++) {
        make(2 * BLOCK);
        uint64_t bytes, due = time_ns + bounds.wait_ms * 1000000ULL;
        struct monarch_peer_request q = request_of(BLOCK - 500, 1000);
        file.there = 0;
        file.is_coming = way % 2;
        file.status = way < 2 ? MONARCH_PEER_LATER : MONARCH_PEER_OK;
        put(&q);
        SAME(run_it(), MONARCH_PEER_TO_WAIT);
        SAME(c.deadline_ns, due);
        time_ns = due - 1;
        SAME(run_it(), MONARCH_PEER_TO_WAIT);
        SAME(c.deadline_ns, due);
        file.status = MONARCH_PEER_OK;
        /* this wait began earlier: in ways 0 and 1, before the file could be opened */
        SAME(run_it(), MONARCH_PEER_TO_WAIT);
        SAME(c.due_ns, due);
        time_ns = due;
        SAME(run_it(), MONARCH_PEER_TO_READ);
        SAME(answer(BLOCK - 500, q.tag, &bytes),
             way % 2 ? MONARCH_PEER_COMING : MONARCH_PEER_TIMEOUT);
        SAME(bytes, 0);
        done();
    }
}

/* Whenever more bytes become available, a new wait begins, and the peer gets a new time limit. */
TEST(bytes_that_come_begin_a_new_wait) {
    make(2 * BLOCK);
    uint64_t bytes;
    struct monarch_peer_request q = request_of(0, 2 * BLOCK);
    put(&q);
    file.there = 10;
    for (int i = 0; i < 5; i++) {
        SAME(run_it(), MONARCH_PEER_TO_WAIT);
        SAME(c.due_ns, time_ns + bounds.wait_ms * 1000000ULL);
        time_ns = c.due_ns - 1;
        file.there += 10;
    }
    file.there = MONARCH_PEER_NEVER; /* the fill has failed */
    SAME(run_it(), MONARCH_PEER_TO_READ);
    SAME(answer(0, q.tag, &bytes), MONARCH_PEER_UNKNOWN_FILE);
    SAME(bytes, 0);
    end_wait(&c, &stage);
    uint64_t was = c.deadline_ns;
    time_ns += 5;
    end_wait(&c, &stage); /* no effect: the connection does not wait */
    SAME(c.deadline_ns, was);
    c.due_ns = 1;
    end_wait(&c, &stage);
    SAME(c.deadline_ns, time_ns + bounds.stall_ms * 1000000ULL);
    SAME(c.due_ns, 0);
    done();
}

/* A part of a block is sent only if the complete block still has its recorded sum. A complete block
 * is sent without this check, because its receiver makes the check. If the request says that the
 * block is doubted, even a complete block is checked before it is sent. */
TEST(rotten_blocks_are_not_sent) {
    const struct {
        uint64_t first, length;
        int is_doubted, is_sent, hashes;
    } cases[] = {{1, 100, 0, 0, 1},
                 {0, BLOCK, 1, 0, 1},
                 {BLOCK, BLOCK - 1, 0, 0, 1},
                 {BLOCK, BLOCK, 0, 1, 0}};
    for (int i = 0; i < 4; i++)
        for (int is_good = 0; is_good < 2; is_good++) {
            uint64_t bytes;
            make(2 * BLOCK);
            file.is_good = is_good;
            file.is_recorded = 1;
            struct monarch_peer_request q = request_of(cases[i].first, cases[i].length);
            q.is_doubted = (uint16_t)cases[i].is_doubted;
            put(&q);
            SAME(run_it(), MONARCH_PEER_TO_READ);
            int is_sent = is_good || cases[i].is_sent;
            SAME(answer(q.first, q.tag, &bytes),
                 is_sent ? MONARCH_PEER_OK : MONARCH_PEER_UNKNOWN_FILE);
            SAME(bytes, is_sent ? q.length : 0);
            SAME(file.hashes, cases[i].hashes);
            SAME(sent, is_sent ? q.length : 0);
            done();
        }
}

/* If no sum is recorded for a block, the block is checked only after it was sent. The check uses
 * the sum that was computed while the block was sent. */
TEST(a_block_without_a_recorded_sum_is_checked_after_it_was_sent) {
    for (uint64_t n = 100; n <= BLOCK; n += BLOCK - 100)
        for (int is_good = 0; is_good < 2; is_good++) {
            uint64_t bytes;
            make(n);
            file.is_good = is_good;
            struct monarch_peer_request q = request_of(0, n);
            put(&q);
            SAME(run_it(), MONARCH_PEER_TO_READ);
            SAME(answer(0, q.tag, &bytes), is_good ? MONARCH_PEER_OK : MONARCH_PEER_UNKNOWN_FILE);
            SAME(bytes, is_good ? n : 0);
            done();
        }
}

/* If a file has become shorter, the connection ends, because a frame has promised bytes that cannot
 * be sent. */
TEST(a_file_that_became_shorter_ends_the_connection) {
    const uint64_t sizes[] = {1000, BLOCK};
    for (int i = 0; i < 2; i++) {
        make(sizes[i]);
        struct monarch_peer_request q = request_of(0, sizes[i]);
        CHECK(ftruncate(file.fd, (off_t)sizes[i] - 1) == 0);
        put(&q);
        SAME(run_it(), MONARCH_PEER_TO_CLOSE);
        done();
    }
    make(BLOCK);
    /* a part is sent only after a check, which needs the whole block */
    struct monarch_peer_request q = request_of(1, 10);
    CHECK(ftruncate(file.fd, BLOCK - 1) == 0);
    put(&q);
    uint64_t bytes;
    SAME(run_it(), MONARCH_PEER_TO_READ);
    SAME(answer(1, q.tag, &bytes), MONARCH_PEER_UNKNOWN_FILE);
    done();
}

/* If the peer is gone, the connection ends. */
TEST(a_peer_that_is_gone_ends_the_connection) {
    make(2 * BLOCK);
    struct monarch_peer_request q = request_of(0, 2 * BLOCK);
    put(&q);
    signal(SIGPIPE, SIG_IGN);
    close(client);
    client = -1;
    io_state state;
    while ((state = monarch_peer_step(&c, &stage)) == MONARCH_PEER_TO_SEND)
        ;
    SAME(state, MONARCH_PEER_TO_CLOSE);
    done();
}

/* A step of a busy connection ends after a limited number of answers, however small they are, so
 * that the thread can serve other connections. */
TEST(a_busy_connection_leaves_time_to_others) {
    make(1000);
    uint64_t bytes;
    const int answers = 2 * YIELD_BYTES / MONARCH_PEER_CHUNK;
    int steps = 1;
    uint64_t tags[2 * YIELD_BYTES / MONARCH_PEER_CHUNK];
    for (int i = 0; i < answers; i++) {
        struct monarch_peer_request q = request_of(0, 1);
        tags[i] = q.tag;
        put(&q);
    }
    for (; monarch_peer_step(&c, &stage) == MONARCH_PEER_TO_YIELD; steps++)
        SAME(requests, steps * (YIELD_BYTES / MONARCH_PEER_CHUNK));
    SAME(steps, 3);
    collect();
    for (int i = 0; i < answers; i++)
        SAME(answer(0, tags[i], &bytes), MONARCH_PEER_OK);
    done();
}

/* The socket is in blocking mode only while the thread may stay with the connection. */
TEST(a_socket_blocks_only_while_a_thread_may_stay) {
    make(1000);
    for (int may = 0; may < 3; may++) {
        stage.may_block = may % 2;
        SAME(monarch_peer_step(&c, &stage), MONARCH_PEER_TO_READ);
        SAME(c.blocks, may % 2);
        SAME((fcntl(c.fd, F_GETFL) & O_NONBLOCK) == 0, may % 2);
    }
    done();
}
