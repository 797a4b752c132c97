#include "copy/pack.c"

#include "checks.h"

/* The pack of a test. Its file has bytes that are computed from seed 5, and its members are parts
 * of this file. */
static struct monarch_engine *e;
static struct pack *p;
static struct monarch_member *members;
static uint64_t count;
static int file;
static char buffer[MONARCH_CHUNK];

static void add(uint64_t gap, uint64_t size) {
    uint64_t at = count ? members[count - 1].offset + members[count - 1].size : 0;
    members[count] =
        (struct monarch_member){.hash = 1000 + count, .offset = at + gap, .size = size};
    count++;
}

static void begin(void) {
    e = make_engine(MONARCH_CHUNK);
    members = calloc(10000, sizeof *members);
    count = 0;
}

static void open_pack(void) {
    struct statx x;
    uint64_t size = end_of(&members[count - 1]);
    unlink("pack");
    file = make_file("pack", size, 5);
    CHECK(identity_of(file, &x) == 0);
    SAME(monarch_engine_pack(e, 0, file, size, ns(x.stx_mtime), count, members), 0);
    p = e->pack[0];
}

static void done(void) {
    monarch_pack_free(p);
    close(file);
    free(members);
    free_engine(e);
}

static struct job order_of(uint64_t member) {
    await_member(p, (uint32_t)member);
    return (struct job){.pack = p, .member = (uint32_t)member, .handed = -1, .peer = {-1}};
}

/* Orders the member, reads it and checks its bytes. Returns how many bytes this read fetched from
 * the pack's file. */
static uint64_t read_member(uint64_t member, int in_use) {
    struct job job = order_of(member);
    uint64_t before = e->counts[MONARCH_BYTES];
    job.result.in_use = (uint32_t)in_use;
    SAME(monarch_pack_read(e, &job, buffer), 0);
    check_bytes(5, 0, members[member].offset, buffer, members[member].size);
    CHECK(!job.pack && !p->is_ordered[member]);
    return e->counts[MONARCH_BYTES] - before;
}

static int windows(enum window_state state) {
    int n = 0;
    for (int i = 0; i < WINDOWS; i++)
        n += p->window[i].state == state;
    return n;
}

/* --- members ---------------------------------------------------------------------------------- */

/* A member is found by the hash of its name, but only if its size and its time are also those that
 * are searched for. If several members have the same name, only the last one is found. */
TEST(the_last_member_of_a_name_counts) {
    begin();
    for (int i = 0; i < 300; i++)
        add(0, 10);
    for (uint64_t i = 0; i < 300; i++) {
        /* all members have the same place in the hash table */
        members[i].hash = i < 290 ? i * 512 : (i - 290) * 512;
        members[i].size = i < 290 ? 10 : 11;
        members[i].mtime_ns = (int64_t)i;
    }
    members[299].hash = 512 * 400;
    members[299].offset = 4096;
    file = make_file("pack", 10, 1);
    p = new_pack(file, count, members);
    for (uint64_t i = 9; i < 290; i++)
        SAME(find(p, i * 512, 10, (int64_t)i), i);
    for (uint64_t i = 0; i < 9; i++) {
        SAME(find(p, i * 512, 10, (int64_t)i), -1);
        SAME(find(p, i * 512, 11, (int64_t)i + 290), i + 290);
        SAME(find(p, i * 512, 11, (int64_t)i + 291), -1);
    }
    SAME(find(p, 512 * 400, 11, 299), 299);
    SAME(find(p, 512 * 401, 11, 299), -1);
    SAME(find(p, 511, 10, 0), -1);
    file = -1;
    done();
}

/* A pack is accepted only if it has the size and the time of the pack whose members were listed.
 * The caller keeps its own descriptor. */
TEST(another_pack_is_refused) {
    begin();
    add(0, 100);
    file = make_file("pack", 100, 5);
    struct statx x;
    CHECK(identity_of(file, &x) == 0);
    int before = open_descriptors();
    SAME(monarch_engine_pack(e, 0, file, 101, ns(x.stx_mtime), 1, members), -ESTALE);
    SAME(monarch_engine_pack(e, 0, file, 100, ns(x.stx_mtime) + 1, 1, members), -ESTALE);
    SAME(monarch_engine_pack(e, 0, -1, 100, 0, 1, members), -EBADF);
    SAME(monarch_engine_pack(e, 0, file, 100, ns(x.stx_mtime), UINT32_MAX, members), -ENOMEM);
    SAME(open_descriptors(), before);
    CHECK(!e->pack[0]);
    SAME(monarch_engine_pack_error(e, 0), 0);
    SAME(monarch_engine_pack(e, 3, file, 100, ns(x.stx_mtime), 1, members), 0);
    CHECK(e->pack[3] && !e->pack[0]);
    p = e->pack[3];
    done();
}

/* Whether the session's owner may read a file is decided by the file's owner, group and mode alone.
 * The first class that applies (owner, group, others) decides. */
TEST(the_files_mode_decides_who_reads_it_from_a_pack) {
    begin();
    e->control->owner = 7;
    e->control->groups = 2;
    e->control->group[0] = 20;
    e->control->group[1] = 30;
    e->control->group[2] = 40; /* not a group of the owner */
    for (unsigned uid = 6; uid < 8; uid++)
        for (unsigned gid = 10; gid < 50; gid += 10)
            for (unsigned mode = 0; mode < 01000; mode++) {
                struct monarch_entry entry = {.uid = uid, .gid = gid, .mode = (uint16_t)mode};
                unsigned bit = uid == 7 ? 0400 : gid == 20 || gid == 30 ? 040 : 04;
                SAME(may_read(e, &entry), (mode & bit) != 0);
            }
    struct monarch_entry none = {.uid = 1};
    e->control->reads_everything = 1;
    SAME(may_read(e, &none), 1);
    free(members);
    free_engine(e);
}

/* A file is looked up in a pack only if it is a regular file of at most one unit, and the session's
 * owner may read it. */
TEST(only_small_readable_files_are_looked_up) {
    begin();
    add(0, MONARCH_UNIT);
    add(0, MONARCH_UNIT + 1);
    members[0].hash = monarch_xxh3("a/small", 7);
    members[1].hash = monarch_xxh3("a/large", 7);
    open_pack();
    e->control->reads_everything = 1;
    struct monarch_entry entry = {.kind = MONARCH_FILE, .size = MONARCH_UNIT, .path_len = 7};
    SAME(member_of(e, &entry, "a/small"), 0);
    SAME(member_of(e, &entry, "a/other"), -1);
    entry.size++;
    SAME(member_of(e, &entry, "a/large"), -1);
    entry.size--;
    e->block_bytes = 1000; /* now a unit is as small as a block */
    SAME(member_of(e, &entry, "a/small"), -1);
    e->block_bytes = MONARCH_CHUNK;
    entry.kind = MONARCH_LINK;
    SAME(member_of(e, &entry, "a/small"), -1);
    entry.kind = MONARCH_FILE;
    entry.source = 1;
    SAME(member_of(e, &entry, "a/small"), -1);
    entry.source = 0;
    e->control->reads_everything = 0;
    e->control->owner = 1;
    SAME(member_of(e, &entry, "a/small"), -1);
    done();
}

static struct job *meeting(int peer) {
    struct job *job = calloc(1, sizeof *job + 8);
    strcpy(job->path, "a/small");
    job->entry = (struct monarch_entry){.kind = MONARCH_FILE, .size = 50, .path_len = 7};
    job->peer[0] = peer;
    return job;
}

/* An order finds its member in the pack. If the order does not ask a peer first, the pack notes
 * that the member is ordered, so that neighbouring members can be read together. A pack that has
 * changed is never used again. A pack that failed may be used again. */
TEST(an_order_meets_its_member) {
    begin();
    add(0, 50);
    add(0, 50);
    members[1].hash = monarch_xxh3("a/small", 7);
    open_pack();
    e->control->reads_everything = 1;
    for (int way = 0; way < 4; way++) {
        struct job *job = meeting(way == 1 ? 3 : -1);
        p->error = way == 2 ? EIO : way == 3 ? ESTALE : 0;
        monarch_pack_meet(e, job);
        SAME(job->pack == p, way < 3);
        SAME(p->is_ordered[1], way == 0 || way == 2);
        if (job->pack) {
            SAME(job->member, 1);
            monarch_pack_leave(job);
        }
        CHECK(!job->pack && !p->is_ordered[1]);
        monarch_pack_leave(job); /* does nothing */
        free(job);
    }
    done();
}

/* --- windows ---------------------------------------------------------------------------------- */

/* Draws packs and orders at random. Every window stays within its limit. It begins and ends with an
 * ordered member, and counts the orders for its members. No member is in two windows. At most about
 * half of a window's bytes belong to no ordered member. */
TEST(windows_hold_ordered_members_and_little_else) {
    uint64_t seed = 3;
    for (int trial = 0; trial < 60; trial++) {
        begin();
        int n = 2 + (int)below(&seed, 120);
        for (int i = 0; i < n; i++)
            add(below(&seed, 3) ? below(&seed, 1024) : below(&seed, 60000),
                below(&seed, 8) ? below(&seed, 9000) : below(&seed, MONARCH_UNIT));
        open_pack();
        for (uint64_t i = 0; i < count; i++)
            if (below(&seed, 3))
                await_member(p, (uint32_t)i);
        for (int turn = 0; turn < 8; turn++) {
            uint64_t member = below(&seed, count);
            uint64_t most = below(&seed, 2) ? WINDOW_BYTES : SHORT_WINDOW_BYTES;
            if (!p->is_ordered[member] || window_of(p, &members[member]))
                continue;
            struct window *w = begin_window(p, member, most);
            CHECK(w && w->state == READING && w->bytes);
            uint64_t first = w->at / MONARCH_PAGE_BYTES * MONARCH_PAGE_BYTES;
            CHECK(w->at <= members[member].offset && end_of(&members[member]) <= w->at + w->length);
            CHECK(w->length <= members[member].size || w->at + w->length - first <= most);
            uint64_t wanted = 0;
            uint32_t orders = 0;
            int begins = 0, ends = 0;
            for (uint64_t i = 0; i < count; i++) {
                begins |= p->is_ordered[i] && members[i].offset == w->at;
                ends |= p->is_ordered[i] && end_of(&members[i]) == w->at + w->length;
                if (!p->is_ordered[i] || members[i].offset < w->at ||
                    end_of(&members[i]) > w->at + w->length)
                    continue;
                orders++;
                wanted += members[i].size;
                CHECK(window_of(p, &members[i]));
            }
            CHECK(begins && ends);
            SAME(w->left, orders);
            CHECK(w->length - wanted <= wanted + orders * JOINED_BYTES);
            w->state = READY;
        }
        done();
    }
}

/* Two ordered members are read together with the gap between them if the gap is small, or if it is
 * not longer than the ordered bytes before it. */
TEST(a_gap_is_read_along_up_to_a_limit) {
    const uint64_t small = JOINED_BYTES, size = 40000;
    const struct {
        uint64_t size, gap;
        int joins;
    } gaps[] = {{100, 0, 1},          {100, small, 1}, {100, small + 1, 0},
                {size, small + 1, 1}, {size, size, 1}, {size, size + 1, 0}};
    for (unsigned i = 0; i < sizeof gaps / sizeof *gaps; i++) {
        begin();
        add(0, gaps[i].size);
        add(gaps[i].gap, 10);
        open_pack();
        await_member(p, 0);
        await_member(p, 1);
        struct window w = {.state = EMPTY};
        extend(p, &w, 0, WINDOW_BYTES);
        SAME(w.left, 1 + gaps[i].joins);
        SAME(w.length, gaps[i].joins ? gaps[i].size + gaps[i].gap + 10 : gaps[i].size);
        p->is_ordered[1] = 0; /* without an order, the second member is not read */
        extend(p, &w, 0, WINDOW_BYTES);
        SAME(w.length, gaps[i].size);
        SAME(w.left, 1);
        p->is_ordered[0] = 0;
        extend(p, &w, 0, WINDOW_BYTES);
        SAME(w.left, 0);
        done();
    }
}

/* A window may be exactly as long as its limit, but not a byte longer. Its length is counted from
 * the start of the page in which the window begins. */
TEST(a_window_ends_at_its_limit) {
    for (int more = 0; more < 2; more++) {
        begin();
        add(100, 1000);
        add(0, SHORT_WINDOW_BYTES - 1100 + (uint64_t)more);
        open_pack();
        await_member(p, 0);
        await_member(p, 1);
        struct window w = {.state = EMPTY};
        extend(p, &w, 0, SHORT_WINDOW_BYTES);
        SAME(w.left, 2 - more);
        done();
    }
}

/* A window begins with the requested member, or with the run of members directly before it. The run
 * goes back until it meets a member whose fill is not ordered, or that another window contains. It
 * has at most LOOKS_BACK members. */
TEST(a_window_begins_with_the_run_before_its_member) {
    begin();
    for (int i = 0; i < 200; i++)
        add(0, 100);
    open_pack();
    for (uint32_t i = 0; i < 200; i++)
        if (i != 20)
            await_member(p, i);
    SAME(first_beside(p, 10), 0);
    SAME(first_beside(p, 30), 21);
    SAME(first_beside(p, 21), 21);
    SAME(first_beside(p, 150), 150 - LOOKS_BACK);
    p->window[4] = (struct window){.state = READY, .at = members[40].offset, .length = 100};
    SAME(first_beside(p, 50), 41);
    done();
}

/* If no window is empty, the window that was used longest ago is emptied. A window is never emptied
 * while a thread uses it, while an order needs it, or while it is being read. */
TEST(the_window_that_was_used_longest_ago_is_taken) {
    begin();
    add(0, 10);
    open_pack();
    for (int i = 0; i < WINDOWS; i++)
        p->window[i] = (struct window){.state = READY, .used = 100, .left = 1, .bytes = malloc(1)};
    CHECK(!free_window(p));
    p->window[3].left = p->window[9].left = p->window[5].left = p->window[7].left = 0;
    p->window[3].used = 9;
    p->window[9].used = 8;
    p->window[5].used = 1;
    p->window[5].users = 1;
    p->window[7].used = 0;
    p->window[7].state = READING;
    CHECK(free_window(p) == &p->window[9] && p->window[9].state == EMPTY && !p->window[9].bytes);
    CHECK(free_window(p) == &p->window[9]);
    p->window[9].state = READING;
    CHECK(free_window(p) == &p->window[3]);
    done();
}

/* --- reads ------------------------------------------------------------------------------------ */

/* One read fetches all ordered members that lie close together. Each order gets its bytes. After
 * the last order, no window is left. */
TEST(one_read_serves_all_orders_nearby) {
    begin();
    for (int i = 0; i < 40; i++)
        add(512, 3000);
    open_pack();
    int before = open_descriptors();
    for (uint32_t i = 0; i < 40; i++)
        await_member(p, i);
    SAME(read_member(17, 0), 40 * 3512 - 512);
    SAME(windows(READY), 1);
    CHECK(e->fills->source_ns > 0 && e->endpoint[0].flow.bytes[0] == 40 * 3512 - 512);
    for (uint64_t i = 0; i < 40; i++)
        if (i != 17)
            SAME(read_member(i, 0), 0);
    SAME(windows(EMPTY), WINDOWS);
    SAME(open_descriptors(), before);
    SAME(e->endpoint[0].busy, 0);
    /* an order with no other orders nearby reads only its own member */
    SAME(read_member(3, 0), 3000);
    SAME(windows(EMPTY), WINDOWS);
    done();
}

/* A file that a program waits for is read in a shorter window. */
TEST(a_file_in_use_is_read_in_a_short_window) {
    for (int in_use = 0; in_use < 2; in_use++) {
        begin();
        for (int i = 0; i < 20; i++)
            add(0, 50000);
        open_pack();
        for (uint32_t i = 0; i < 20; i++)
            await_member(p, i);
        SAME(read_member(0, in_use), (in_use ? SHORT_WINDOW_BYTES : WINDOW_BYTES) / 50000 * 50000);
        done();
    }
}

/* A withdrawn order no longer keeps its window. If another order or a thread needs the window, the
 * window stays. */
TEST(an_order_that_leaves_frees_its_window) {
    begin();
    for (int i = 0; i < 3; i++)
        add(0, 100);
    open_pack();
    struct job first = order_of(0), second = order_of(1), third = order_of(2);
    SAME(monarch_pack_read(e, &first, buffer), 0);
    SAME(p->window[0].left, 2);
    monarch_pack_leave(&second);
    SAME(windows(READY), 1);
    SAME(p->window[0].left, 1);
    second.pack = p;
    monarch_pack_leave(&second); /* a second call counts nothing */
    SAME(p->window[0].left, 1);
    p->window[0].users = 1;
    monarch_pack_leave(&third);
    SAME(windows(READY), 1);
    p->window[0].users = 0;
    first.pack = p;
    monarch_pack_leave(&first);
    SAME(windows(EMPTY), WINDOWS);
    done();
}

/* An order may come for a member that an existing window contains. The window then counts this
 * order, and stays until the order is served. */
TEST(an_order_for_a_window_that_is_there_keeps_it) {
    begin();
    for (int i = 0; i < 3; i++)
        add(0, 100);
    open_pack();
    await_member(p, 0);
    await_member(p, 2);
    SAME(read_member(0, 0), 300);
    SAME(p->window[0].left, 1);
    await_member(p, 1);
    SAME(p->window[0].left, 2);
    await_member(p, 1);
    SAME(p->window[0].left, 2);
    SAME(read_member(2, 0), 0);
    SAME(read_member(1, 0), 0);
    SAME(windows(EMPTY), WINDOWS);
    done();
}

/* An empty member needs no read. */
TEST(an_empty_member_is_read_without_the_source) {
    begin();
    add(0, 0);
    add(0, 10);
    open_pack();
    p->error = EIO; /* no other member could be read now */
    p->retry_ns = UINT64_MAX;
    SAME(read_member(0, 0), 0);
    done();
}

/* If no window is free, a member is read alone. */
TEST(without_a_window_a_member_is_read_alone) {
    begin();
    for (int i = 0; i < 3; i++)
        add(0, 1000);
    open_pack();
    for (int i = 0; i < WINDOWS; i++)
        p->window[i] = (struct window){.state = READY, .left = 1, .at = 1 << 20, .length = 1};
    await_member(p, 2);
    SAME(read_member(1, 0), 1000);
    SAME(windows(READY), WINDOWS);
    done();
}

/* A pack that has changed is never read again. After a failure of another kind, the pack is not
 * read for a while. */
TEST(a_pack_that_has_changed_is_not_read_again) {
    begin();
    for (int i = 0; i < 3; i++)
        add(0, 1000);
    open_pack();
    CHECK(pwrite(file, "x", 1, 2999) == 1);
    struct job job = order_of(0);
    SAME(monarch_pack_read(e, &job, buffer), -1);
    SAME(monarch_engine_pack_error(e, 0), ESTALE);
    CHECK(!job.pack && !p->is_ordered[0] && windows(EMPTY) == WINDOWS);
    uint64_t read = e->counts[MONARCH_BYTES];
    note_error(p, 0);
    SAME(p->error, ESTALE);
    job = order_of(1);
    SAME(monarch_pack_read(e, &job, buffer), -1);
    SAME(e->counts[MONARCH_BYTES], read);
    done();
}

/* A change of the pack shows in its ctime, even if its mtime is set back. */
TEST(a_pack_whose_time_was_set_back_has_changed) {
    begin();
    add(0, 1000);
    open_pack();
    struct stat st;
    CHECK(fstat(file, &st) == 0);
    const struct timespec times[] = {st.st_atim, st.st_mtim};
    SAME(look_again(p), 0);
    CHECK(pwrite(file, "x", 1, 9) == 1 && futimens(file, times) == 0);
    SAME(look_again(p), ESTALE);
    done();
}

TEST(a_pack_that_failed_is_read_again_after_a_while) {
    begin();
    add(0, 1000);
    open_pack();
    uint64_t before = monarch_now_ns();
    note_error(p, EIO);
    CHECK(p->retry_ns >= before + RETRY_NS && p->retry_ns <= monarch_now_ns() + RETRY_NS);
    SAME(is_in_order(p), 0);
    SAME(monarch_engine_pack_error(e, 0), EIO);
    struct job job = order_of(0);
    SAME(monarch_pack_read(e, &job, buffer), -1);
    SAME(e->counts[MONARCH_BYTES], 0);
    p->retry_ns = monarch_now_ns() - 1;
    SAME(is_in_order(p), 1);
    SAME(read_member(0, 0), 1000);
    SAME(monarch_engine_pack_error(e, 0), 0);
    done();
}

/* If a pack ends before its last member does, the pack has changed, and the result is ESTALE. If
 * the pack cannot be read, the result is the errno of the read. */
TEST(a_failed_read_tells_why) {
    begin();
    add(0, 1000);
    open_pack();
    struct window w = {.at = 500, .length = 501, .bytes = buffer};
    SAME(read_window(e, p, &w), ESTALE);
    w.length = 500;
    SAME(read_window(e, p, &w), 0);
    int own = p->fd;
    p->fd = -1;
    SAME(read_window(e, p, &w), EBADF);
    SAME(look_again(p), EBADF);
    p->fd = own;
    SAME(e->counts[MONARCH_BYTES], 500 + 500);
    SAME(e->endpoint[0].busy, 0);
    done();
}

/* Once the engine stops, no pack is read. */
TEST(an_engine_that_stops_reads_no_pack) {
    begin();
    add(0, 1000);
    open_pack();
    struct job job = order_of(0);
    e->stopping = 1;
    SAME(monarch_pack_read(e, &job, buffer), -1);
    SAME(e->counts[MONARCH_BYTES], 0);
    CHECK(!job.pack);
    done();
}

/* While a thread waits for a window that another thread reads, the waiting thread reads the next
 * ordered members that are in no window. It reads no other members. */
TEST(a_thread_that_waits_reads_the_next_window) {
    begin();
    for (int i = 0; i < 200; i++)
        add(0, 1000);
    open_pack();
    struct job job = order_of(0);
    struct window *w = &p->window[0];
    *w = (struct window){.state = READING, .at = 0, .length = 10 * 1000};
    pthread_mutex_lock(&p->lock);
    SAME(read_ahead(e, &job, p, w), 0); /* nothing is ordered */
    await_member(p, 5);                 /* member 5 is in the window that is being read */
    SAME(read_ahead(e, &job, p, w), 0);
    p->window[1] = (struct window){.state = READING, .at = 12 * 1000, .length = 5 * 1000};
    await_member(p, 13);
    SAME(read_ahead(e, &job, p, w), 0);
    await_member(p, 17);
    await_member(p, 18);
    SAME(read_ahead(e, &job, p, w), 1);
    CHECK(p->window[2].state == READY && p->window[2].at == 17 * 1000);
    SAME(p->window[2].length, 2000);
    SAME(read_ahead(e, &job, p, w), 0);
    await_member(p, 150); /* too far away */
    SAME(read_ahead(e, &job, p, w), 0);
    pthread_mutex_unlock(&p->lock);
    done();
}
