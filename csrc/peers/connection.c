/* The protocol of one connection: reads a request, opens its file, frames the bytes and sends them.
 * One call of monarch_peer_step works on the connection until the connection must wait, and returns
 * what it waits for. If `may_block` is set, the call itself may block until the socket accepts
 * bytes. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "peers/connection.h"
#include "shared/xxh3.h"

/* After a thread has sent this many bytes on a connection, it continues with another connection. */
#define YIELD_BYTES (4 << 20)
/* After this many bytes, a thread that may block on a connection checks whether it still may. */
#define STAY_BYTES (1 << 20)

typedef struct monarch_peer_connection connection;
typedef const struct monarch_peer_stage stage_t;
typedef enum monarch_peer_io_state io_state;

static void give(connection *c, uint32_t ms) {
    c->deadline_ns = monarch_now_ns() + ms * 1000000ULL;
}

static void queue_with(connection *c, uint32_t kind, uint64_t value,
                       const struct monarch_digest *digest) {
    struct monarch_peer_frame *f = &c->out[c->frames++];
    *f = (struct monarch_peer_frame){
        .magic = MONARCH_PEER_FRAME, .kind = kind, .tag = c->in.request.tag, .value = value};
    monarch_seal(c->says, c->said++, f, MONARCH_SEALED_OF_FRAME, digest, f->seal);
}

static void queue(connection *c, uint32_t kind, uint64_t value) {
    queue_with(c, kind, value, NULL);
}

/* Sends the queued frames. more: 1 if bytes of the file follow at once. The kernel can then put the
 * frames and these bytes into one TCP segment. */
static io_state flush(connection *c, stage_t *stage, int more) {
    size_t all = c->frames * sizeof c->out[0];
    while (c->sent < all) {
        ssize_t r = send(c->fd, (char *)c->out + c->sent, all - c->sent,
                         MSG_NOSIGNAL | (c->blocks ? 0 : MSG_DONTWAIT) | (more ? MSG_MORE : 0));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0 && errno == EAGAIN)
            return MONARCH_PEER_TO_SEND;
        if (r <= 0)
            return MONARCH_PEER_TO_CLOSE;
        c->sent += (unsigned)r;
        give(c, stage->bounds->stall_ms);
    }
    c->frames = c->sent = 0;
    return MONARCH_PEER_GO;
}

void monarch_peer_let_go(connection *c, stage_t *stage) {
    if (c->file.file)
        stage->files->close(stage->files->arg, c->file.file);
    c->file.file = NULL;
}

static io_state finish(connection *c, stage_t *stage, enum monarch_peer_status status) {
    monarch_peer_let_go(c, stage);
    queue(c, MONARCH_PEER_END, status);
    give(c, stage->bounds->stall_ms);
    c->state = MONARCH_PEER_ENDING;
    return MONARCH_PEER_GO;
}

static enum monarch_peer_status why_late(stage_t *stage) {
    return stage->files->is_coming(stage->files->arg) ? MONARCH_PEER_COMING : MONARCH_PEER_TIMEOUT;
}

/* Call this if the next bytes are not available yet. Sends the frames that are ready, and begins or
 * continues the wait for the bytes. If this wait has reached its time limit, ends the answer. */
static io_state wait_for_bytes(connection *c, stage_t *stage) {
    uint64_t now = monarch_now_ns();
    if (c->due_ns && now >= c->due_ns)
        return finish(c, stage, why_late(stage));
    io_state sent = flush(c, stage, 0);
    if (sent != MONARCH_PEER_GO)
        return sent;
    if (!c->due_ns)
        c->due_ns = now + stage->bounds->wait_ms * 1000000ULL;
    c->deadline_ns = c->due_ns;
    return MONARCH_PEER_TO_WAIT;
}

/* Ends a wait for bytes of the file. The peer's time limit starts anew, because the peer did not
 * cause this wait. */
static void end_wait(connection *c, stage_t *stage) {
    if (c->due_ns)
        give(c, stage->bounds->stall_ms);
    c->due_ns = 0;
}

/* --- a request -------------------------------------------------------------------------------- */

static io_state read_request(connection *c, stage_t *stage) {
    while (c->got < sizeof c->in) {
        ssize_t r = recv(c->fd, c->in.bytes + c->got, sizeof c->in - c->got, MSG_DONTWAIT);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0 && errno == EAGAIN)
            return MONARCH_PEER_TO_READ;
        if (r <= 0)
            return MONARCH_PEER_TO_CLOSE;
        /* The time limit of a request starts at its first byte. Later bytes do not extend it. */
        if (c->got == 0)
            give(c, stage->bounds->stall_ms);
        c->got += (unsigned)r;
        /* If the first bytes are not the magic number, the peer speaks another protocol. */
        if (c->got >= 4 && c->in.request.magic != MONARCH_PEER_REQUEST)
            return MONARCH_PEER_TO_CLOSE;
    }
    if (!monarch_is_sealed(c->hears, c->heard++, &c->in, MONARCH_SEALED_OF_REQUEST, NULL,
                           c->in.request.seal))
        return MONARCH_PEER_TO_CLOSE;
    c->got = 0;
    c->due_ns = 0;
    c->state = MONARCH_PEER_OPENING;
    __atomic_fetch_add(stage->requests, 1, __ATOMIC_RELAXED);
    return MONARCH_PEER_GO;
}

static io_state open_file(connection *c, stage_t *stage) {
    const struct monarch_peer_request *q = &c->in.request;
    /* Both ends of the range must lie in the file. This comparison cannot overflow. */
    if (q->first > q->size || q->length > q->size - q->first)
        return finish(c, stage, MONARCH_PEER_REFUSED);
    enum monarch_peer_status status = stage->files->open(stage->files->arg, q, &c->file);
    if (status == MONARCH_PEER_LATER)
        return wait_for_bytes(c, stage);
    if (status != MONARCH_PEER_OK) {
        c->file.file = NULL;
        return finish(c, stage, status);
    }
    /* Leave `due_ns` unchanged, so that one deadline limits the wait for the file and a later wait
     * for its bytes together. */
    c->at = q->first;
    c->end = q->first + q->length;
    c->state = MONARCH_PEER_FRAMING;
    c->piece_end = c->at;
    return MONARCH_PEER_GO;
}

/* --- the answer ------------------------------------------------------------------------------- */

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Hashes the bytes [at, end) of the file. digest: NULL if it is not needed. Returns 0, or -1 on
 * failure. */
static int hash_range(const connection *c, stage_t *stage, uint64_t at, uint64_t end, uint64_t *sum,
                      struct monarch_digest *digest) {
    struct xxh3_stream stream;
    monarch_xxh3_begin(&stream);
    if (digest)
        monarch_mac_begin(stage->content, 0);
    while (at < end) {
        uint64_t n = least(end - at, MONARCH_PEER_CHUNK);
        ssize_t r = pread(c->file.fd, stage->buffer, n, (off_t)at);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return -1;
        monarch_xxh3_add(&stream, stage->buffer, (size_t)r);
        if (digest)
            monarch_mac_add(stage->content, stage->buffer, (size_t)r);
        at += (uint64_t)r;
    }
    *sum = monarch_xxh3_end(&stream);
    return digest && !monarch_mac_end(stage->content, digest->bytes) ? -1 : 0;
}

static uint64_t end_of_block(const connection *c, uint64_t block) {
    return least((block + 1) * c->file.block_bytes, c->file.size);
}

static int is_whole_block(const connection *c) {
    uint64_t block = c->piece / c->file.block_bytes;
    return c->piece == block * c->file.block_bytes && c->piece_end == end_of_block(c, block);
}

static int hash_bytes(stage_t *stage, const char *bytes, uint64_t n, uint64_t *sum,
                      struct monarch_digest *digest) {
    *sum = monarch_xxh3(bytes, n);
    monarch_mac_begin(stage->content, 0);
    monarch_mac_add(stage->content, bytes, n);
    return monarch_mac_end(stage->content, digest->bytes) ? 0 : -1;
}

/* Determines the sum and the digest of the current piece. For a whole block, uses the values that
 * the fill has recorded, if there are any. With them, the receiver notices bytes that have rotted
 * since the fill. Otherwise, computes both from the piece's bytes. bytes: the piece in memory;
 * NULL: read it from the file. Returns CUT if the values cannot be computed; the caller must then
 * close the connection. Returns UNKNOWN_FILE if a whole block proves to be rotten. */
static enum monarch_peer_status sum_of(const connection *c, stage_t *stage, const char *bytes,
                                       uint64_t *sum, struct monarch_digest *digest) {
    uint64_t block = c->piece / c->file.block_bytes;
    void *arg = stage->files->arg;
    int is_whole = is_whole_block(c);
    if (is_whole && stage->files->sum(arg, c->file.file, block, sum, digest))
        return MONARCH_PEER_OK;
    if (bytes ? hash_bytes(stage, bytes, c->piece_end - c->piece, sum, digest)
              : hash_range(c, stage, c->piece, c->piece_end, sum, digest))
        return MONARCH_PEER_CUT;
    return !is_whole || stage->files->check(arg, c->file.file, block, sum)
               ? MONARCH_PEER_OK
               : MONARCH_PEER_UNKNOWN_FILE;
}

/* Returns whether the current piece may be sent. A whole block needs no check, unless the peer has
 * reported that it arrived damaged before. For a part of a block, no sum is recorded, so the
 * receiver could not notice rotten bytes. So this node first compares the whole block with its
 * recorded sum, unless the block was found good recently. */
static int is_sound(const connection *c, stage_t *stage) {
    uint64_t block = c->piece / c->file.block_bytes, sum;
    void *arg = stage->files->arg;
    return (is_whole_block(c) && !c->in.request.is_doubted) ||
           stage->files->check(arg, c->file.file, block, NULL) ||
           (hash_range(c, stage, block * c->file.block_bytes, end_of_block(c, block), &sum, NULL) ==
                0 &&
            stage->files->check(arg, c->file.file, block, &sum));
}

/* Returns whether the whole answer can be sent in one call: it is small, all its bytes are
 * available, and nothing was sent yet. */
static int is_small(const connection *c, uint64_t there) {
    return c->frames == 0 && c->at == c->in.request.first && c->end - c->at <= MONARCH_PEER_SMALL &&
           there >= c->end && c->piece_end == c->end;
}

/* Call this after a small answer (DATA, the file's bytes, SUM and END) was passed to the kernel in
 * one call. sent: how many of its bytes the kernel accepted. Sets the connection's state as if each
 * part had been sent by a call of its own. If bytes of the file are left to send, SUM and END are
 * later made again, with the same seal numbers. */
static io_state go_on(connection *c, stage_t *stage, size_t sent) {
    const size_t frame = sizeof c->out[0], n = c->end - c->at;
    give(c, stage->bounds->stall_ms);
    if (sent >= frame + n) {
        c->at = c->end;
        c->out[0] = c->out[1];
        c->out[1] = c->out[2];
        c->frames = 2;
        c->sent = (unsigned)(sent - frame - n);
        monarch_peer_let_go(c, stage);
        c->state = MONARCH_PEER_ENDING;
        return MONARCH_PEER_GO;
    }
    c->said -= 2;
    c->at += sent < frame ? 0 : sent - frame;
    c->frames = sent < frame;
    c->sent = sent < frame ? (unsigned)sent : 0;
    c->state = MONARCH_PEER_SENDING;
    return MONARCH_PEER_GO;
}

/* Sends the DATA frame, all bytes, the SUM frame and the END frame in one call. */
static io_state send_small(connection *c, stage_t *stage) {
    struct monarch_digest digest;
    uint64_t n = c->end - c->at, sum;
    ssize_t r;
    do
        r = pread(c->file.fd, stage->buffer, n, (off_t)c->at);
    while (r < 0 && errno == EINTR);
    if (r != (ssize_t)n)
        return MONARCH_PEER_TO_CLOSE; /* the file was shortened or cannot be read */
    enum monarch_peer_status status = sum_of(c, stage, stage->buffer, &sum, &digest);
    if (status == MONARCH_PEER_CUT)
        return MONARCH_PEER_TO_CLOSE;
    if (status != MONARCH_PEER_OK)
        return finish(c, stage, status);
    c->frame_end = c->end;
    queue(c, MONARCH_PEER_DATA, n);
    queue_with(c, MONARCH_PEER_SUM, sum, &digest);
    queue(c, MONARCH_PEER_END, MONARCH_PEER_OK);
    struct iovec parts[] = {
        {&c->out[0], sizeof c->out[0]}, {stage->buffer, n}, {&c->out[1], 2 * sizeof c->out[0]}};
    struct msghdr all = {.msg_iov = parts, .msg_iovlen = 3};
    do
        r = sendmsg(c->fd, &all, MSG_NOSIGNAL | (c->blocks ? 0 : MSG_DONTWAIT));
    while (r < 0 && errno == EINTR);
    if (r < 0 && errno != EAGAIN)
        return MONARCH_PEER_TO_CLOSE;
    size_t sent = r > 0 ? (size_t)r : 0,
           data = sent > sizeof c->out[0] ? sent - sizeof c->out[0] : 0;
    __atomic_fetch_add(stage->bytes, least(data, n), __ATOMIC_RELAXED);
    return go_on(c, stage, sent);
}

static io_state begin_frame(connection *c, stage_t *stage) {
    if (c->at == c->end)
        return finish(c, stage, MONARCH_PEER_OK);
    uint64_t there = stage->files->available(stage->files->arg, c->file.file, c->at);
    if (there == MONARCH_PEER_NEVER)
        return finish(c, stage, MONARCH_PEER_UNKNOWN_FILE);
    if (there <= c->at)
        return wait_for_bytes(c, stage);
    end_wait(c, stage);
    if (c->at == c->piece_end) {
        c->piece = c->at;
        c->piece_end = least(c->end, (c->at / c->file.block_bytes + 1) * c->file.block_bytes);
        if (!is_sound(c, stage))
            return finish(c, stage, MONARCH_PEER_UNKNOWN_FILE);
    }
    if (is_small(c, there))
        return send_small(c, stage);
    c->frame_end = least(there, c->piece_end);
    queue(c, MONARCH_PEER_DATA, c->frame_end - c->at);
    c->state = MONARCH_PEER_SENDING;
    return MONARCH_PEER_GO;
}

static io_state end_piece(connection *c, stage_t *stage) {
    uint64_t sum;
    struct monarch_digest digest;
    enum monarch_peer_status status = sum_of(c, stage, NULL, &sum, &digest);
    if (status != MONARCH_PEER_OK)
        return status == MONARCH_PEER_CUT ? MONARCH_PEER_TO_CLOSE : finish(c, stage, status);
    queue_with(c, MONARCH_PEER_SUM, sum, &digest);
    c->state = MONARCH_PEER_FRAMING;
    return MONARCH_PEER_GO;
}

static io_state send_bytes(connection *c, stage_t *stage, uint64_t *left) {
    io_state framed = flush(c, stage, 1);
    if (framed != MONARCH_PEER_GO)
        return framed;
    while (c->at < c->frame_end) {
        if (*left == 0)
            return MONARCH_PEER_TO_YIELD;
        off_t at = (off_t)c->at;
        uint64_t n = c->frame_end - c->at;
        /* On a blocking socket, sendfile may block again after every 64 KiB. So limit the bytes per
         * call. */
        if (c->blocks)
            n = least(n, *left);
        ssize_t r = sendfile(c->fd, c->file.fd, &at, n);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0 && errno == EAGAIN)
            return MONARCH_PEER_TO_SEND;
        /* The file was shortened or cannot be read. So the DATA frame has announced bytes that
         * cannot be sent. */
        if (r <= 0)
            return MONARCH_PEER_TO_CLOSE;
        give(c, stage->bounds->stall_ms);
        c->at += (uint64_t)r;
        __atomic_fetch_add(stage->bytes, (uint64_t)r, __ATOMIC_RELAXED);
        *left -= least(*left, (uint64_t)r);
        /* Fewer than `n` bytes were sent, so the socket's buffer is full. Another sendfile would
         * look up 16 pages of the file and then send nothing. */
        if ((uint64_t)r < n)
            return MONARCH_PEER_TO_SEND;
    }
    if (c->at == c->piece_end)
        return end_piece(c, stage);
    c->state = MONARCH_PEER_FRAMING;
    return MONARCH_PEER_GO;
}

static io_state send_end(connection *c, stage_t *stage) {
    io_state sent = flush(c, stage, 0);
    if (sent != MONARCH_PEER_GO)
        return sent;
    c->state = MONARCH_PEER_READING;
    give(c, stage->bounds->idle_ms);
    return MONARCH_PEER_GO;
}

/* Sets whether calls on the socket block. This changes the socket itself, because sendfile has no
 * flag for a single call. A blocking sendfile is the cheapest way to wait. It needs no second
 * system call, no high-resolution timer, and no second look-up of the pages that were not sent. */
static void set_blocking(connection *c, int blocks) {
    if (c->blocks == blocks)
        return;
    int flags = fcntl(c->fd, F_GETFL);
    fcntl(c->fd, F_SETFL, blocks ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
    c->blocks = blocks;
}

io_state monarch_peer_step(connection *c, stage_t *stage) {
    uint64_t left = stage->may_block ? STAY_BYTES : YIELD_BYTES;
    io_state next = MONARCH_PEER_GO;
    set_blocking(c, stage->may_block);
    while (next == MONARCH_PEER_GO) {
        if (left == 0)
            return MONARCH_PEER_TO_YIELD;
        switch (c->state) {
        case MONARCH_PEER_READING:
            next = read_request(c, stage);
            break;
        case MONARCH_PEER_OPENING:
            next = open_file(c, stage);
            break;
        case MONARCH_PEER_FRAMING:
            next = begin_frame(c, stage);
            break;
        case MONARCH_PEER_SENDING:
            next = send_bytes(c, stage, &left);
            break;
        case MONARCH_PEER_ENDING:
            left -= least(left, MONARCH_PEER_CHUNK);
            next = send_end(c, stage);
            break;
        }
    }
    return next;
}
