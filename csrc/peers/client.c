/* Gets ranges of files from a peer. Several requests can be sent before the first answer arrives.
 * Every wait has a time limit. Bytes are accepted only if their checksum is right. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "peers/connection.h"
#include "shared/buffer.h"
#include "shared/xxh3.h"

/* Maximum number of unanswered requests on a link (a connection to the peer). So many requests, and
 * the frames of their answers, always fit into the sockets' buffers. With more, both ends could
 * block while sending, each waiting for the other. */
#define AHEAD 64
/* A peer must send an answer at least at this rate [bytes/s]. A slower answer misses its deadline
 * (take_answer). */
#define LEAST_BYTES_PER_S (128 * 1024)

/* A thread that waits for an answer wakes when this many bytes have arrived: a few large calls of
 * recv cost less than many small ones. It also wakes when the answer's last bytes have arrived. So
 * this delays no reader, because a reader needs the whole answer. */
#define AT_A_WAKE (2 * 1024 * 1024)
/* A waiting thread wakes after this time [ns] even if fewer bytes than AT_A_WAKE have arrived. */
#define WAKE_NS 200000000ULL

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif
#define SOCK_RCVBUF_LOCK 2

typedef struct monarch_peer_get get;
typedef struct monarch_peer_link link_t;

struct monarch_peer_link {
    int fd;
    /* bound_ms: the time limit of the current wait, either first_byte_ms or between_ms */
    uint32_t first_byte_ms, between_ms, bound_ms;
    /* frames: number of frames received so far, and so the number of the next frame's seal. tag:
     * number of requests sent so far, and so the number of the next request's seal. */
    uint64_t frames, tag;
    /* says: computes the seals of requests; used by the thread that sends requests. hears: checks
     * the seals of frames. content: computes digests. Both are used by the thread that receives
     * answers. */
    struct monarch_mac *hears, *says, *content;
    size_t least; /* the socket's low-water mark (SO_RCVLOWAT), as it was set last */
    char *buffer; /* buffer of the current fetch */
    /* [from, until): the part of `buffer` that contains received bytes which are not parsed yet;
     * used for small answers */
    size_t from, until;
};

/* The answer that is being read. */
struct answer {
    get *g;
    /* came: number of bytes received, even if their checksum has not arrived yet. deadline_ns: the
     * time by which the complete answer must have arrived */
    uint64_t came, deadline_ns;
    struct xxh3_stream stream;
};

/* --- the socket ------------------------------------------------------------------------------- */

/* Sets the number of bytes that must have arrived before a waiting thread wakes. */
static void wake_at(link_t *l, size_t n) {
    int least = (int)n;
    if (l->least != n)
        setsockopt(l->fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least);
    l->least = n;
}

/* Waits until `n` bytes have arrived, the socket's buffer is full, the connection has ended, or
 * `deadline` has passed. Returns TIMEOUT only if the deadline had passed before the call. To wake
 * once for many packets saves processor time. */
static enum monarch_peer_status await(link_t *l, size_t n, uint64_t deadline) {
    struct pollfd p = {.fd = l->fd, .events = POLLIN};
    uint64_t now = monarch_now_ns();
    wake_at(l, n);
    if (now >= deadline)
        return MONARCH_PEER_TIMEOUT;
    if (poll(&p, 1, (int)((deadline - now + 999999) / 1000000)) < 0 && errno != EINTR)
        return MONARCH_PEER_CUT;
    return MONARCH_PEER_OK;
}

static uint64_t bound_from(const link_t *l, uint64_t now) { return now + l->bound_ms * 1000000ULL; }

/* Returns the number of bytes that can be read without waiting. */
static uint64_t readable(const link_t *l) {
    int n = 0;
    return ioctl(l->fd, FIONREAD, &n) == 0 && n > 0 ? (uint64_t)n : 0;
}

static size_t take_ahead(link_t *l, void *to, size_t n) {
    size_t there = l->until - l->from;
    n = n < there ? n : there;
    memmove(to, l->buffer + l->from, n);
    l->from += n;
    return n;
}

/* Receives exactly `n` bytes before the deadline. Bytes that arrive one by one do not extend the
 * deadline. */
static enum monarch_peer_status take(link_t *l, void *to, size_t n, uint64_t deadline) {
    for (size_t got = take_ahead(l, to, n); got < n;) {
        ssize_t r = recv(l->fd, (char *)to + got, n - got, MSG_DONTWAIT);
        if (r == 0 || (r < 0 && errno != EINTR && errno != EAGAIN))
            return MONARCH_PEER_CUT;
        got += r > 0 ? (size_t)r : 0;
        if (got == n)
            break;
        enum monarch_peer_status status = await(l, n - got, deadline);
        if (status != MONARCH_PEER_OK)
            return status;
    }
    return MONARCH_PEER_OK;
}

static enum monarch_peer_status put(link_t *l, const void *from, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t r = send(l->fd, (const char *)from + done, n - done, MSG_NOSIGNAL);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return errno == EAGAIN ? MONARCH_PEER_TIMEOUT : MONARCH_PEER_CUT;
        done += (size_t)r;
    }
    return MONARCH_PEER_OK;
}

/* Makes the request with number `tag`. The caller increments l->tag for the next request. */
static struct monarch_peer_request request_of(const link_t *l, const get *g, uint64_t tag) {
    struct monarch_peer_request q = {.magic = MONARCH_PEER_REQUEST,
                                     .source = g->source,
                                     .tag = tag,
                                     .path_hash = g->path_hash,
                                     .size = g->size,
                                     .mtime_ns = g->mtime_ns,
                                     .first = g->first,
                                     .length = g->length,
                                     .is_awaited = g->is_awaited != 0,
                                     .is_doubted = g->is_doubted != 0,
                                     .is_owner = g->is_owner != 0};
    monarch_seal(l->says, tag, &q, MONARCH_SEALED_OF_REQUEST, NULL, q.seal);
    return q;
}

static enum monarch_peer_status ask(link_t *l, const get *gets, uint64_t n) {
    struct monarch_peer_request q[AHEAD];
    for (uint64_t i = 0; i < n; i++)
        q[i] = request_of(l, &gets[i], l->tag++);
    return put(l, q, n * sizeof *q);
}

/* --- an answer -------------------------------------------------------------------------------- */

static int store(get *g, const char *from, uint64_t n, uint64_t at) {
    while (n) {
        ssize_t r = pwrite(g->to, from, n, (off_t)(g->at + at));
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0) {
            g->error = r < 0 ? errno : EIO;
            return -1;
        }
        from += r;
        at += (uint64_t)r;
        n -= (uint64_t)r;
    }
    return 0;
}

/* Receives one part of the bytes of a DATA frame. A part is small enough to stay in the processor's
 * cache while it is hashed and written. */
static enum monarch_peer_status take_part(link_t *l, struct answer *a, size_t n,
                                          uint64_t deadline) {
    get *g = a->g;
    char *to = g->memory ? (char *)(uintptr_t)g->memory + a->came : l->buffer;
    enum monarch_peer_status status = take(l, to, n, deadline);
    if (status != MONARCH_PEER_OK)
        return status;
    monarch_xxh3_add(&a->stream, to, n);
    monarch_mac_add(l->content, to, n);
    if (!g->memory && store(g, to, n, a->came) != 0)
        return MONARCH_PEER_NO_ROOM;
    a->came += n;
    return MONARCH_PEER_OK;
}

static enum monarch_peer_status take_data(link_t *l, struct answer *a, uint64_t n) {
    enum monarch_peer_status status = MONARCH_PEER_OK;
    if (n == 0 || n > a->g->length - a->came)
        return MONARCH_PEER_CUT;
    for (uint64_t there = 0; n && status == MONARCH_PEER_OK;) {
        size_t part = n < MONARCH_PEER_CHUNK ? n : MONARCH_PEER_CHUNK;
        uint64_t now = monarch_now_ns(), deadline = bound_from(l, now);
        if (now > a->deadline_ns)
            return MONARCH_PEER_TIMEOUT;
        size_t ahead = l->until - l->from < part ? l->until - l->from : part;
        if (ahead + there < part) {
            uint64_t until = now + WAKE_NS < deadline ? now + WAKE_NS : deadline;
            status = await(l, n - ahead < AT_A_WAKE ? n - ahead : AT_A_WAKE, until);
            there = readable(l);
        }
        if (status == MONARCH_PEER_OK)
            status = take_part(l, a, part, deadline);
        there -= there < part - ahead ? there : part - ahead;
        n -= part;
    }
    return status;
}

static void begin_piece(link_t *l, struct answer *a) {
    monarch_xxh3_begin(&a->stream);
    monarch_mac_begin(l->content, 0);
}

/* Decides whether to accept the bytes before a SUM frame. Returns WRONG_BYTES if their sum differs
 * from the frame's: the sender's copy is damaged, or the bytes were changed in transit. Returns
 * FORGED if the frame's seal is wrong. */
static enum monarch_peer_status judge(link_t *l, struct answer *a,
                                      const struct monarch_peer_frame *f,
                                      struct monarch_digest *digest) {
    get *g = a->g;
    int has_digest = monarch_mac_end(l->content, digest->bytes);
    if (a->came == g->received || monarch_xxh3_end(&a->stream) != f->value)
        return MONARCH_PEER_WRONG_BYTES;
    if (!has_digest ||
        !monarch_is_sealed(l->hears, l->frames - 1, f, MONARCH_SEALED_OF_FRAME, digest, f->seal))
        return MONARCH_PEER_FORGED;
    g->received = a->came;
    begin_piece(l, a);
    return MONARCH_PEER_OK;
}

/* Receives a small answer and its frames in one call of recv, because such an answer usually
 * arrives in one piece. Stores it at the end of the buffer, because take_part moves the file's
 * bytes to the buffer's beginning. Receives at most as many bytes as a complete answer has. If this
 * answer is shorter (an END alone), the rest may be bytes of the next answer. */
static enum monarch_peer_status take_small(link_t *l, const get *g) {
    size_t frame = sizeof(struct monarch_peer_frame), all = 3 * frame + g->length;
    uint64_t deadline = bound_from(l, monarch_now_ns());
    if (g->length > MONARCH_PEER_SMALL || l->from < l->until)
        return MONARCH_PEER_OK;
    wake_at(l, frame);
    /* The first call of recv waits for the answer, at most first_byte_ms (SO_RCVTIMEO). This costs
     * less than a call of `await`. */
    for (int flags = 0;; flags = MSG_DONTWAIT) {
        size_t at = MONARCH_PEER_CHUNK - all;
        ssize_t r = recv(l->fd, l->buffer + at, all, flags);
        l->from = at;
        l->until = at + (r > 0 ? (size_t)r : 0);
        if (r > 0)
            return MONARCH_PEER_OK;
        if (r == 0 || (errno != EINTR && errno != EAGAIN))
            return MONARCH_PEER_CUT;
        enum monarch_peer_status status = await(l, frame, deadline);
        if (status != MONARCH_PEER_OK)
            return status;
    }
}

/* Receives the next frame and checks its seal. A SUM's seal is checked later, by `judge`, because
 * this seal also covers the digest of the bytes before the SUM. */
static enum monarch_peer_status take_frame(link_t *l, struct monarch_peer_frame *f, uint64_t tag) {
    uint64_t deadline = bound_from(l, monarch_now_ns());
    enum monarch_peer_status status = take(l, f, sizeof *f, deadline);
    if (status != MONARCH_PEER_OK)
        return status;
    if (f->magic != MONARCH_PEER_FRAME)
        return MONARCH_PEER_CUT;
    uint64_t number = l->frames++;
    if (f->kind != MONARCH_PEER_SUM &&
        !monarch_is_sealed(l->hears, number, f, MONARCH_SEALED_OF_FRAME, NULL, f->seal))
        return MONARCH_PEER_FORGED;
    return f->tag == tag ? MONARCH_PEER_OK : MONARCH_PEER_CUT;
}

/* Returns whether a peer may send this status in an END. Statuses of the connection, such as CUT,
 * are never sent: the receiver sets them itself. */
static int is_an_end(const struct answer *a, uint64_t status) {
    if (status == MONARCH_PEER_OK)
        return a->g->received == a->g->length;
    return status <= MONARCH_PEER_TIMEOUT || status / MONARCH_PEER_MOVED == 1;
}

/* Receives one answer and sets its status in *g. Returns 0. Returns -1 if the link cannot be used
 * any more, because its next bytes cannot be parsed. */
static int take_answer(link_t *l, get *g, uint64_t tag, uint64_t which,
                       monarch_peer_arrived arrived, void *arg) {
    struct answer a = {.g = g};
    struct monarch_peer_frame f;
    struct monarch_digest digest;
    uint64_t ms = (uint64_t)l->first_byte_ms + l->between_ms;
    a.deadline_ns =
        monarch_now_ns() + ms * 1000000 + (uint64_t)((double)g->length / LEAST_BYTES_PER_S * 1e9);
    begin_piece(l, &a);
    l->bound_ms = l->first_byte_ms;
    g->status = take_small(l, g);
    while (g->status == MONARCH_PEER_OK &&
           (g->status = take_frame(l, &f, tag)) == MONARCH_PEER_OK) {
        l->bound_ms = l->between_ms;
        uint64_t first = g->received;
        if (f.kind == MONARCH_PEER_DATA) {
            g->status = take_data(l, &a, f.value);
        } else if (f.kind == MONARCH_PEER_SUM) {
            g->status = judge(l, &a, &f, &digest);
            if (g->status == MONARCH_PEER_OK && arrived)
                arrived(arg, which, first, g->received - first, f.value, digest.bytes);
        } else if (f.kind == MONARCH_PEER_END && is_an_end(&a, f.value)) {
            g->status = (uint32_t)f.value;
            return 0;
        } else {
            g->status = MONARCH_PEER_CUT;
        }
        if (g->status != MONARCH_PEER_OK)
            return -1;
    }
    return -1;
}

/* --- calls from Python ------------------------------------------------------------------------ */

static void free_link(link_t *l) {
    monarch_mac_free(l->hears);
    monarch_mac_free(l->says);
    monarch_mac_free(l->content);
    free(l);
}

static void set_options(int fd, uint32_t first_byte_ms, uint32_t between_ms) {
    int on = 1, room = AT_A_WAKE, locked = SOCK_RCVBUF_LOCK;
    struct timeval first = {first_byte_ms / 1000, first_byte_ms % 1000 * 1000};
    struct timeval between = {between_ms / 1000, between_ms % 1000 * 1000};
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &first, sizeof first); /* see take_small */
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &between, sizeof between);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    /* SO_RCVLOWAT sets the number of bytes after which a waiting thread wakes. The kernel then
     * makes the receive buffer large enough for twice as many. So the peer can go on sending while
     * the thread stores what has arrived. SO_BUF_LOCK (Linux 5.14) keeps the kernel from enlarging
     * the buffer further: with more bytes in flight, queues in a shared network would overflow. */
    setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &room, sizeof room);
    setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &locked, sizeof locked);
}

link_t *monarch_peer_link_new(int fd, const struct monarch_peer_keys *keys,
                              const unsigned char *content_key, uint32_t first_byte_ms,
                              uint32_t between_ms) {
    link_t *l = malloc(sizeof *l);
    if (!l)
        return NULL;
    *l = (link_t){.fd = fd,
                  .first_byte_ms = first_byte_ms,
                  .between_ms = between_ms,
                  .hears = monarch_mac_new(keys->theirs),
                  .says = monarch_mac_new(keys->mine),
                  .content = monarch_mac_new(content_key)};
    if (!l->hears || !l->says || !l->content) {
        free_link(l);
        return NULL;
    }
    set_options(fd, first_byte_ms, between_ms);
    return l;
}

static int fetch(link_t *l, get *gets, uint64_t n, monarch_peer_arrived arrived, void *arg) {
    uint64_t asked = 0, tag = l->tag;
    int r = 0;
    for (uint64_t i = 0; r == 0 && i < n; i++) {
        /* Further requests are sent only when at least AHEAD / 2 of them may be sent, so that one
         * system call sends many requests. */
        if (asked < n && asked - i <= AHEAD / 2) {
            uint64_t more = AHEAD - (asked - i) < n - asked ? AHEAD - (asked - i) : n - asked;
            enum monarch_peer_status status = ask(l, gets + asked, more);
            if (status != MONARCH_PEER_OK) {
                gets[i].status = status;
                return -1;
            }
            asked += more;
        }
        r = take_answer(l, &gets[i], tag + i, i, arrived, arg);
    }
    return r;
}

/* Begins a fetch. If `buffer` is NULL, allocates a buffer and returns it; the caller must free it
 * later. Otherwise returns NULL. If memory is exhausted, sets l->buffer to NULL. */
static char *begin(link_t *l, get *gets, uint64_t n, char *buffer) {
    char *own = buffer ? NULL : monarch_new_buffer(MONARCH_PEER_CHUNK);
    l->buffer = buffer ? buffer : own;
    l->from = l->until = 0;
    for (uint64_t i = 0; i < n; i++) {
        gets[i].status = l->buffer ? MONARCH_PEER_CUT : MONARCH_PEER_NO_ROOM;
        gets[i].received = 0;
        gets[i].error = l->buffer ? 0 : ENOMEM;
    }
    return own;
}

/* Ends a fetch. If the peer has sent more bytes than were requested, cuts the link, because the
 * next answer on it could not be parsed. */
static void end(link_t *l, char *own) {
    if (l->from < l->until)
        monarch_peer_link_cut(l);
    l->buffer = NULL;
    free(own);
}

int monarch_peer_fetch(link_t *l, get *gets, uint64_t n, char *buffer, monarch_peer_arrived arrived,
                       void *arg) {
    char *own = begin(l, gets, n, buffer);
    int r = l->buffer ? fetch(l, gets, n, arrived, arg) : -1;
    end(l, own);
    return r;
}

int monarch_peer_request(link_t *l, const get *g, uint64_t *tag) {
    struct monarch_peer_request q = request_of(l, g, l->tag);
    ssize_t r = send(l->fd, &q, sizeof q, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (r != sizeof q) {
        if (r > 0)
            monarch_peer_link_cut(l); /* the peer cannot parse requests after a partial one */
        return -1;
    }
    *tag = l->tag++;
    return 0;
}

int monarch_peer_take(link_t *l, get *g, uint64_t tag, char *buffer, monarch_peer_arrived arrived,
                      void *arg) {
    char *own = begin(l, g, 1, buffer);
    int r = l->buffer ? take_answer(l, g, tag, 0, arrived, arg) : -1;
    end(l, own);
    return r;
}

uint64_t monarch_peer_link_frames(const link_t *l) { return l->frames; }

void monarch_peer_link_cut(const link_t *l) { shutdown(l->fd, SHUT_RDWR); }

void monarch_peer_link_close(link_t *l) {
    close(l->fd);
    free_link(l);
}
