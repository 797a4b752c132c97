/* Drives the engine, the scanner and the catalog's writer as the daemon does, while other threads
 * look files up and read their copies.
 *
 *   stress_engine SOURCE TIER ROUNDS GRANTS
 *
 * TIER: a directory on a file system that is too small for all files;  ROUNDS: number of rounds,
 * each with a new engine;  GRANTS: number of grants in a round
 *
 * main() acts as the daemon's only thread. main() and the engine's threads write the catalog, even
 * while main() moves it to other memory. */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "native.h"
#include "shared/doorbell.h"
#include "shared/sys.h"
#include "stress.h"

#define FILES 700
#define LOOKERS 2
#define BLOCK (64 * 1024)
#define MOVING 8    /* the number of files that change while they are copied */
#define NO_SOURCE 1 /* the number of a source without a directory */
#define NO_TIER 1   /* the number of a tier without a directory */
#define CATALOGS 256

static const char *root_path;
static int grants, root, copies, over, moving_over, waiting_over, handovers[2];
/* catalog is accessed atomically, because other threads look files up in it. Catalogs that were
 * replaced stay allocated.
 */
static struct monarch_catalog *catalog;
static struct monarch_catalog *all[CATALOGS];
static struct monarch_writer *writer;
static struct monarch_control control;
static struct monarch_clients *clients;
static struct monarch_fills *fills;
static struct monarch_engine *engine;
static uint64_t next_copy = 1, found_present, published, granted, handed, unmet, rng = 20220822,
                seen_status[MONARCH_ABANDONED + 1];
static int64_t damaged = -1; /* atomic: the entry whose copy main() damages; -1: none */

/* --- the catalog ------------------------------------------------------------------------------ */

static void publish_catalog(uint64_t capacity, uint64_t pool_bytes) {
    uint64_t generation = catalog ? catalog->generation + 1 : 1;
    struct monarch_catalog *fresh = calloc(1, monarch_catalog_bytes(capacity, pool_bytes));
    CHECK(fresh && generation < CATALOGS);
    monarch_catalog_init(fresh, generation, capacity, pool_bytes);
    CHECK(monarch_catalog_move(writer, fresh, &control.generation) == 0);
    CHECK(control.generation == generation);
    all[generation] = fresh;
    __atomic_store_n(&catalog, fresh, __ATOMIC_RELEASE);
}

/* Moves the catalog to other memory of the same size. */
static void move(void) { publish_catalog(catalog->capacity, catalog->pool_bytes); }

static void grow(void) { publish_catalog(catalog->capacity * 2, catalog->pool_bytes * 2); }

static void add(const struct monarch_entry *entries, uint64_t n, const char *pool) {
    uint64_t *ids = calloc(n, sizeof *ids), added = 0;
    for (uint64_t done = 0; (done += monarch_catalog_add(writer, entries + done, n - done, pool,
                                                         ids + done, &added)) < n;)
        grow();
    for (uint64_t i = 0; i < n; i++)
        CHECK(ids[i] < catalog->count);
    free(ids);
}

static void set_word(uint64_t id, uint64_t word) { monarch_set_words(writer, 1, &id, &word); }

static const struct monarch_entry *entry(uint64_t id) { return &monarch_entries(catalog)[id]; }

/* Loads the word atomically, because a copying thread may be publishing a copy. */
static uint64_t word_of(uint64_t id) { return __atomic_load_n(&entry(id)->word, __ATOMIC_RELAXED); }

static int is_moving(const struct monarch_catalog *c, const struct monarch_entry *e) {
    return strncmp(monarch_pool(c, e->path), "moving", 6) == 0;
}

/* --- scanning --------------------------------------------------------------------------------- */

static void wait_for(uint32_t *seen) { *seen = monarch_wait_doorbell(clients, *seen, 200); }

/* Scans the source until `batches` batches were taken (-1: until the scan has ended).
 * monarch_scan_stop frees the batches that were not taken. */
static void scan(int threads, uint64_t ops_per_s, int batches) {
    uint32_t seen = __atomic_load_n(&clients->doorbell, __ATOMIC_SEQ_CST);
    struct monarch_scan *s = monarch_scan_start(root, 0, threads, ops_per_s, &clients->doorbell);
    int finished = 0, error = 0;
    CHECK(s);
    monarch_scan_skip_known(s, writer, clients, INT64_MAX);
    monarch_scan_allow(s, 40, 20);
    while (!finished && batches) {
        monarch_scan_allow(s, 40, 20);
        struct monarch_batch *b = monarch_scan_take(s, &finished);
        if (b) {
            add(b->entries, b->count, b->pool);
            monarch_batch_free(b);
            batches--;
        } else if (!finished) {
            wait_for(&seen);
        }
    }
    CHECK(monarch_scan_errors(s, &error) == 0 && error == 0);
    monarch_scan_stop(s, 60000);
}

/* Stops a scan while its threads wait. The threads wait because the queue of batches is full: the
 * scan makes 12 batches of 4,096 names, and at most one of them is taken. */
static void stop_a_waiting_scan(void) {
    char path[PATH_BYTES], file[PATH_BYTES];
    CHECK(snprintf(path, sizeof path, "%s.many", root_path) < PATH_BYTES);
    CHECK(mkdir(path, 0700) == 0);
    int top = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(top >= 0 && mknodat(top, "file", S_IFREG | 0600, 0) == 0);
    for (int d = 0; d < 12; d++) {
        snprintf(path, sizeof path, "d%d", d);
        CHECK(mkdirat(top, path, 0700) == 0);
        for (int i = 0; i < 4096; i++) {
            snprintf(file, sizeof file, "d%d/%d", d, i);
            CHECK(linkat(top, "file", top, file, 0) == 0);
        }
    }
    for (int taken = 0; taken < 2; taken++) {
        int finished = 0;
        uint32_t bell = 0;
        struct monarch_scan *s = monarch_scan_start(top, 0, 3, 0, &bell);
        CHECK(s);
        monarch_scan_allow(s, -1, -1);
        monarch_scan_want(s, "d7", 1);
        while (__atomic_load_n(&bell, __ATOMIC_SEQ_CST) < 8)
            usleep(1000);
        monarch_scan_want(s, "d11", taken);
        for (int i = 0; i < taken; i++)
            monarch_batch_free(monarch_scan_take(s, &finished));
        monarch_scan_stop(s, 60000);
    }
    close(top);
}

/* --- what other processes do ------------------------------------------------------------------ */

static unsigned number_in(const char *path) { return (unsigned)atoi(path + 5); }

/* Reads the copy that `word` names. Numbers of copies are never reused, so the copy either has its
 * file's bytes or is gone. */
static void read_copy(const struct monarch_catalog *c, int64_t id, uint64_t word, unsigned k) {
    char name[32], buffer[4096];
    struct stat st;
    snprintf(name, sizeof name, "%013llx", (unsigned long long)MONARCH_WORD_COPY(word));
    int fd = openat(copies, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        CHECK(errno == ENOENT);
        return;
    }
    CHECK(fstat(fd, &st) == 0 && (uint64_t)st.st_size == size_of(k));
    int64_t owner = monarch_find_copy(c, 0, st.st_ino);
    uint64_t at = 0;
    for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0; at += (uint64_t)n)
        if (__atomic_load_n(&damaged, __ATOMIC_ACQUIRE) != id)
            check_bytes(k, 0, at, buffer, (uint64_t)n);
    CHECK(at == size_of(k) && close(fd) == 0);
    /* `owner` is the entry whose copy, according to the catalog, has this inode number. If the copy
     * that was read has been dropped, another copy may have got its inode number. So `owner` is
     * checked only if the entry `id` still has the copy that was read. */
    if (__atomic_load_n(&monarch_entries(c)[id].word, __ATOMIC_ACQUIRE) == word &&
        c == __atomic_load_n(&catalog, __ATOMIC_ACQUIRE) && st.st_nlink)
        CHECK(owner == id || owner < 0);
    __atomic_fetch_add(&found_present, 1, __ATOMIC_RELAXED);
}

static void look_up(const struct monarch_catalog *c, uint64_t *rng) {
    char path[PATH_BYTES], odd[PATH_BYTES * 3], buffer[MONARCH_PATH_MAX];
    struct monarch_place place = {.path = buffer};
    unsigned k = (unsigned)below(rng, FILES), d = k % DIRECTORIES;
    uint64_t count = __atomic_load_n(&c->count, __ATOMIC_ACQUIRE);
    name_of(k, path);
    int64_t id = monarch_find(c, 0, path, strlen(path));
    CHECK(id < (int64_t)c->capacity);
    if (id < 0)
        return;
    const struct monarch_entry *e = &monarch_entries(c)[id];
    CHECK(strcmp(monarch_pool(c, e->path), path) == 0 && number_in(path) == k);
    CHECK(e->kind == MONARCH_FILE && e->size == size_of(k) && e->path_len == strlen(path));
    CHECK(monarch_find_inode(c, 0, e->ino) == id || (uint64_t)id >= count);
    snprintf(odd, sizeof odd, "%s/l%02u/..//./d%02u/f%05u", root_path, d, d, k);
    monarch_resolve(&control, c, clients, "/", odd, 1, &place);
    CHECK(place.entry == id || place.entry < 0);
    uint64_t word = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
    if (MONARCH_WORD_STATE(word) == MONARCH_PRESENT)
        read_copy(c, id, word, k);
    else if (MONARCH_WORD_STATE(word) == MONARCH_ABSENT)
        monarch_set_bit(&clients->wanted, id);
    /* Files that change are looked up too. Their attributes are not checked, because this thread
     * cannot know which attributes are right. */
    snprintf(odd, sizeof odd, "%s/d%02u/../moving%u", root_path, d, k % MOVING);
    monarch_resolve(&control, c, clients, "/", odd, 1, &place);
    CHECK(place.entry != id);
    CHECK(monarch_find(c, 0, "d00/nothing", 11) < 0);
    if (below(rng, 50) == 0)
        monarch_mark_changed(clients, 7, random_of(rng));
}

static void *look_things_up(void *number) {
    uint64_t rng = (uintptr_t)number;
    while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
        look_up(__atomic_load_n(&catalog, __ATOMIC_ACQUIRE), &rng);
        if (below(&rng, 3) == 0)
            usleep(100); /* leaves processor time to the other threads */
    }
    return NULL;
}

static void moving_path(unsigned i, char *path) {
    CHECK(snprintf(path, PATH_BYTES, "%s/moving%u", root_path, i) < PATH_BYTES);
}

static void *move_files(void *number) {
    uint64_t rng = (uintptr_t)number;
    char path[PATH_BYTES];
    while (!__atomic_load_n(&moving_over, __ATOMIC_RELAXED)) {
        moving_path((unsigned)below(&rng, MOVING), path);
        switch (below(&rng, 3)) {
        case 0:
            CHECK(truncate(path, (off_t)below(&rng, 3 * BLOCK)) == 0);
            break;
        case 1:
            unlink(path);
            /* fall through */
        default: {
            int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
            CHECK(fd >= 0 && write(fd, path, 20) == 20 && close(fd) == 0);
        }
        }
        usleep(300);
    }
    return NULL;
}

/* --- orders and results ----------------------------------------------------------------------- */

/* Returns whether the entry is one of those (one in 16) for which the test writes copy number 0
 * into the catalog, while the order has another number. The engine must not publish the copies of
 * these orders. */
static int is_for_another(uint64_t id) { return id % 16 == 5; }

static void take_fill(const struct monarch_result *r) {
    uint64_t word = monarch_word(MONARCH_PRESENT, 0, r->tier, r->copy);
    if (r->is_published) {
        CHECK(r->status == MONARCH_DONE && entry(r->id)->word == word && !is_for_another(r->id));
        CHECK(entry(r->id)->sum == r->sum && entry(r->id)->copy_ino == r->copy_ino);
        published++;
        return;
    }
    if (r->status == MONARCH_TIER_FULL) {
        set_word(r->id, monarch_word(MONARCH_BYPASS, MONARCH_NO_ROOM, 0, 0));
    } else if (r->status != MONARCH_DONE) {
        set_word(r->id, monarch_word(MONARCH_BYPASS, MONARCH_FAILED, 0, 0));
    } else if (monarch_publish(writer, 1, &r->id, &word, &r->copy_ino, &r->sum, NULL) != 0) {
        grow();
        CHECK(monarch_publish(writer, 1, &r->id, &word, &r->copy_ino, &r->sum, NULL) == 0);
    }
}

/* Updates the entry of a changed file with the file's new attributes, as the daemon does. */
static void take_changed(const struct monarch_result *r) {
    struct monarch_entry fresh;
    char target[MONARCH_PATH_MAX];
    const char *path = monarch_pool(catalog, entry(r->id)->path);
    if (monarch_stat_entry(root, 0, path, &fresh, target, sizeof target) == 0)
        monarch_catalog_update(writer, r->id, &fresh);
}

static void take(const struct monarch_result *r, int expected) {
    CHECK(r->status <= MONARCH_ABANDONED);
    seen_status[r->status]++;
    if (r->kind == MONARCH_FILL)
        take_fill(r);
    if (r->kind != MONARCH_DROP && entry(r->id)->source == 0 && is_moving(catalog, entry(r->id))) {
        if (r->status == MONARCH_SOURCE_CHANGED)
            take_changed(r);
    } else if (expected >= 0) {
        int is_withdrawn = r->status == MONARCH_ABANDONED && r->kind == MONARCH_FILL;
        CHECK((int)r->status == expected || r->status == MONARCH_TIER_FULL || is_withdrawn);
    }
}

/* Takes results until every order has its result. expected: the status that each result must have;
 * -1: any status. */
static void finish(int expected) {
    struct monarch_result out[50];
    uint32_t seen = __atomic_load_n(&clients->doorbell, __ATOMIC_SEQ_CST);
    while (monarch_engine_pending(engine, 0, MONARCH_ORIGINS) ||
           monarch_engine_pending(engine, 1, MONARCH_ORIGINS)) {
        uint64_t n = monarch_engine_results(engine, out, 50);
        for (uint64_t i = 0; i < n; i++)
            take(&out[i], expected);
        monarch_engine_settle(engine);
        if (!n)
            wait_for(&seen);
        if (below(&rng, 4) == 0 && catalog->generation + 16 < CATALOGS)
            move();
    }
}

static void submit(int kind, uint64_t id, uint32_t tier, uint64_t copy) {
    uint64_t sum = __atomic_load_n(&entry(id)->sum, __ATOMIC_RELAXED);
    CHECK(monarch_engine_submit(engine, catalog, kind, (int)(copy % 2), 1, &id, &tier, &copy, &sum,
                                NULL) == 1);
}

static int is_in(uint64_t id, unsigned state) {
    return entry(id)->kind == MONARCH_FILE && MONARCH_WORD_STATE(word_of(id)) == state;
}

/* Orders fills of all files that have no copy, whether a client wants them or not. */
static void fill_all(void) {
    uint64_t n = 0, count = catalog->count, *ids = calloc(count, sizeof *ids);
    uint64_t *numbers = calloc(count, sizeof *numbers);
    uint32_t *tiers = calloc(count, sizeof *tiers);
    uint8_t *flags = calloc(count, 1);
    monarch_take_bits(&clients->wanted, count, ids, count + 64 < 512 ? count : 512);
    for (uint64_t id = 0; id < count; id++)
        if (entry(id)->kind == MONARCH_FILE && entry(id)->source == 0 &&
            !is_in(id, MONARCH_PRESENT)) {
            set_word(id, monarch_word(MONARCH_FILLING, 0, 0, is_for_another(id) ? 0 : next_copy));
            ids[n] = id;
            numbers[n++] = next_copy++;
        }
    /* The limit makes the engine slow, so that some fills have not begun when they are
     * withdrawn. */
    monarch_engine_limit(engine, 0, 100);
    CHECK(monarch_engine_submit(engine, catalog, MONARCH_FILL, 0, n, ids, tiers, numbers, NULL,
                                NULL) == (int)n);
    CHECK(monarch_engine_withdraw(engine, n / 4, ids + n - n / 4) <= n / 4);
    monarch_engine_limit(engine, 0, 0);
    monarch_find_changed(clients, &control, catalog, n, ids, flags);
    free(ids);
    free(numbers);
    free(tiers);
    free(flags);
}

static void drop(uint64_t id) {
    uint64_t word = entry(id)->word, size = entry(id)->size, copy = MONARCH_WORD_COPY(word);
    uint32_t tier = MONARCH_WORD_TIER(word);
    set_word(id, monarch_word(MONARCH_ABSENT, 0, tier, copy));
    CHECK(monarch_engine_drop(engine, 1, &id, &tier, &copy, &size) == 1);
}

static void ask_about_all(int kind) {
    for (uint64_t id = 0; id < catalog->count; id++)
        if (is_in(id, MONARCH_PRESENT))
            submit(kind, id, 0, MONARCH_WORD_COPY(word_of(id)));
}

/* Lets monarch_sum_file compute the sums of some files. Then requests huge pages for a large
 * segment, if the machine has huge pages. */
static void sum_and_collapse(void) {
    char path[PATH_BYTES];
    for (uint64_t id = 0; id < catalog->count; id += 20)
        if (is_in(id, MONARCH_PRESENT) && !is_moving(catalog, entry(id))) {
            uint64_t sum, bytes;
            const char *name = monarch_pool(catalog, entry(id)->path);
            CHECK(snprintf(path, sizeof path, "%s/%s", root_path, name) < PATH_BYTES);
            CHECK(monarch_sum_file(path, BLOCK, &sum, &bytes) == 0);
            CHECK(sum == entry(id)->sum && bytes == entry(id)->size);
        }
    CHECK(snprintf(path, sizeof path, "%s.segment", root_path) < PATH_BYTES);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, 5 << 20) == 0 && close(fd) == 0);
    monarch_collapse(path);
    CHECK(monarch_syncfs(copies) == 0);
}

/* Changes one byte of one copy. The engine must find the damage; the copy is then dropped. */
static void spoil_one(void) {
    char name[32];
    for (uint64_t id = 0; id < catalog->count; id++)
        if (is_in(id, MONARCH_PRESENT) && entry(id)->size && !is_moving(catalog, entry(id))) {
            uint64_t copy = MONARCH_WORD_COPY(entry(id)->word);
            __atomic_store_n(&damaged, (int64_t)id, __ATOMIC_RELEASE);
            snprintf(name, sizeof name, "%013llx", (unsigned long long)copy);
            CHECK(fchmodat(copies, name, 0600, 0) == 0);
            int fd = openat(copies, name, O_RDWR | O_CLOEXEC);
            char byte;
            CHECK(fd >= 0 && pread(fd, &byte, 1, 0) == 1);
            byte ^= 1;
            CHECK(pwrite(fd, &byte, 1, 0) == 1 && close(fd) == 0);
            submit(MONARCH_CHECK, id, 0, copy);
            finish(MONARCH_DAMAGED);
            drop(id);
            finish(MONARCH_DONE);
            return;
        }
    die("there is no copy to spoil");
}

static void order_the_impossible(void) {
    int ordered = 0;
    for (uint64_t id = 0; id < catalog->count; id++)
        if (entry(id)->source == NO_SOURCE) {
            submit(MONARCH_FILL, id, 0, next_copy++);
            submit(MONARCH_COMPARE, id, 0, next_copy++);
            finish(MONARCH_SOURCE_ERROR);
        } else if (entry(id)->kind == MONARCH_FILE && ordered++ < 10) {
            if (!is_in(id, MONARCH_PRESENT))
                submit(MONARCH_FILL, id, NO_TIER, next_copy++);
            submit(MONARCH_CHECK, id, NO_TIER, next_copy++);
            finish(-1);
        }
}

/* --- orders under grants -----------------------------------------------------------------------
 */

/* Writes demands, as clients do while their readers wait. */
static void *wait_for_files(void *number) {
    uint64_t rng = (uintptr_t)number;
    for (uint32_t tag = 0; !__atomic_load_n(&waiting_over, __ATOMIC_RELAXED); tag += 2) {
        const struct monarch_catalog *c = __atomic_load_n(&catalog, __ATOMIC_ACQUIRE);
        uint64_t id = below(&rng, (unsigned)__atomic_load_n(&c->count, __ATOMIC_ACQUIRE)), none = 0;
        const struct monarch_entry *e = &monarch_entries(c)[id];
        if (e->kind == MONARCH_FILE && e->source == 0 && !is_for_another(id)) {
            monarch_set_bit(&clients->wanted, id);
            __atomic_compare_exchange_n(&clients->demand[below(&rng, MONARCH_DEMANDS)], &none,
                                        monarch_demand(id, 0, tag, (unsigned)below(&rng, 3)), 0,
                                        __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
            monarch_ring_for_demand(clients, MONARCH_ORIGINS);
        }
        usleep(20);
    }
    return NULL;
}

static void take_placed(const struct monarch_placed *placed, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        uint64_t word = word_of(placed[i].id);
        CHECK(placed[i].copy == next_copy++ && placed[i].tier == 0);
        CHECK(MONARCH_WORD_COPY(word) == placed[i].copy);
        CHECK(MONARCH_WORD_STATE(word) == MONARCH_FILLING ||
              MONARCH_WORD_STATE(word) == MONARCH_PRESENT);
    }
    granted += n;
}

/* Hands over a descriptor of file `of`, but says that it is a descriptor of file `id`. The two may
 * be different files. Returns whether the descriptor was sent. */
static int send_file(uint64_t id, uint64_t of) {
    const struct monarch_catalog *c = __atomic_load_n(&catalog, __ATOMIC_ACQUIRE);
    struct monarch_handover what = {.id = id};
    struct iovec part = {&what, sizeof what.id};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control_data = {.room = {0}};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control_data,
                             .msg_controllen = sizeof control_data.room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    const struct monarch_entry *e = &monarch_entries(c)[of];
    int fd = e->source == NO_SOURCE ? -1 : openat(root, monarch_pool(c, e->path), O_RDONLY);
    if (fd < 0)
        return 0;
    if (id == of && id % 4 == 0) { /* gives the path, as for a file that is not in the catalog */
        what.id = monarch_unmet(e->ino);
        what.path_len = e->path_len;
        memcpy(what.path, monarch_pool(c, e->path), e->path_len + 1u);
        part.iov_len = offsetof(struct monarch_handover, path) + e->path_len + 1u;
    }
    __atomic_store_n(monarch_claim_at(clients, what.id),
                     monarch_claim_of(what.id, MONARCH_CLAIM_HANDED, monarch_now_ns()),
                     __ATOMIC_SEQ_CST);
    *header = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    int is_sent = sendmsg(handovers[1], &message, MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
    close(fd);
    return is_sent;
}

static void *hand_files_over(void *arg) {
    uint64_t state = (uint64_t)(uintptr_t)arg;
    while (!__atomic_load_n(&waiting_over, __ATOMIC_RELAXED)) {
        const struct monarch_catalog *c = __atomic_load_n(&catalog, __ATOMIC_ACQUIRE);
        uint64_t count = __atomic_load_n(&c->count, __ATOMIC_ACQUIRE);
        uint64_t id = below(&state, (unsigned)count);
        uint64_t of = below(&state, 8) ? id : below(&state, (unsigned)count);
        if (!is_for_another(id) && send_file(id, of))
            __atomic_fetch_add(&handed, 1, __ATOMIC_RELAXED);
        else
            usleep(200);
    }
    return NULL;
}

/* Returns whether every way of ordering and publishing was used often enough. */
static int is_enough(void) {
    return published > 100 && granted > 100 && unmet > 5 &&
           __atomic_load_n(&handed, __ATOMIC_RELAXED) > 100;
}

/* Lets the engine order fills under grants. During a grant, only the engine changes the words of
 * entries. But even during a grant, the catalog is moved to other memory. Makes at least `grants`
 * grants, and more if these lead to too few fills, for example on a busy machine. */
static void order_under_grants(void) {
    struct monarch_room room = {.bytes = 1ULL << 40, .block_bytes = 4096};
    struct monarch_placed placed[MONARCH_PLACED];
    static struct monarch_entry met[64];
    static char paths[64 * MONARCH_SCAN_HINT_PATH];
    pthread_t waiting, handing;
    waiting_over = 0;
    CHECK(pthread_create(&waiting, NULL, wait_for_files, (void *)5) == 0);
    CHECK(pthread_create(&handing, NULL, hand_files_over, (void *)9) == 0);
    for (int i = 0; i < grants || (!is_enough() && i < 20 * grants); i++) {
        finish(-1); /* afterwards, no result is outstanding for a copy that is dropped below */
        for (uint64_t id = 0; id < catalog->count; id++)
            if (is_in(id, MONARCH_PRESENT) && below(&rng, 3) == 0)
                drop(id);
        finish(-1);
        for (uint64_t id = 0; id < catalog->count; id++)
            if (is_in(id, MONARCH_ABSENT))
                set_word(id, 0);
        room.inodes = below(&rng, 200);
        monarch_engine_grant(engine, 1, &room, next_copy, i % 4 == 3);
        if (catalog->generation + 16 < CATALOGS)
            move();
        monarch_engine_rest(engine, 2000);
        uint64_t n = monarch_engine_end_grant(engine, placed);
        CHECK(n <= room.inodes);
        take_placed(placed, n);
        uint64_t known = monarch_engine_unmet(engine, 0, 0, met, 64, paths);
        for (uint64_t k = 0; k < known; k++)
            CHECK(monarch_find(catalog, 0, paths + met[k].path, met[k].path_len) >= 0);
        unmet += known;
    }
    __atomic_store_n(&waiting_over, 1, __ATOMIC_RELAXED);
    pthread_join(waiting, NULL);
    pthread_join(handing, NULL);
    finish(-1);
    for (int i = 0; i < MONARCH_DEMANDS; i++)
        __atomic_store_n(&clients->demand[i], 0, __ATOMIC_SEQ_CST);
}

/* --- a pack ----------------------------------------------------------------------------------- */

static int is_packed(uint64_t id) {
    return entry(id)->kind == MONARCH_FILE && entry(id)->source == 0 && id % 3 &&
           !is_moving(catalog, entry(id)) && entry(id)->size <= MONARCH_UNIT;
}

/* Writes two thirds of the small files into a pack. Each file is preceded by a gap, like the header
 * in a tar archive. Every fifth member has a wrong time, so the engine must not use this member.
 * Returns the number of members. */
static uint64_t make_pack(int pack, struct monarch_member *members) {
    char *bytes = malloc(MONARCH_UNIT);
    uint64_t n = 0, at = 0;
    CHECK(bytes);
    for (uint64_t id = 0; id < catalog->count; id++) {
        if (!is_packed(id))
            continue;
        const struct monarch_entry *e = entry(id);
        const char *path = monarch_pool(catalog, e->path);
        int fd = openat(root, path, O_RDONLY | O_CLOEXEC);
        CHECK(fd >= 0 && pread(fd, bytes, e->size, 0) == (ssize_t)e->size);
        close(fd);
        at += 512;
        CHECK(pwrite(pack, bytes, e->size, (off_t)at) == (ssize_t)e->size);
        members[n] = (struct monarch_member){.hash = monarch_xxh3_of(path, e->path_len),
                                             .offset = at,
                                             .size = e->size,
                                             .mtime_ns = e->mtime_ns + (n % 5 == 0)};
        at += e->size;
        n++;
    }
    free(bytes);
    return n;
}

/* Makes a pack and passes it to the engine. Stores the descriptor of the pack in *pack. */
static void add_pack(int *pack) {
    char path[PATH_BYTES];
    struct stat st;
    struct monarch_member *members = calloc(catalog->count, sizeof *members);
    CHECK(members && snprintf(path, sizeof path, "%s.pack", root_path) < PATH_BYTES);
    *pack = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(*pack >= 0);
    uint64_t n = make_pack(*pack, members);
    CHECK(n > 100 && fstat(*pack, &st) == 0);
    int64_t mtime_ns = monarch_time_ns(st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    uint64_t size = (uint64_t)st.st_size;
    CHECK(monarch_engine_pack(engine, 0, *pack, size + 1, mtime_ns, n, members) == -ESTALE);
    CHECK(monarch_engine_pack(engine, 0, *pack, size, mtime_ns, n, members) == 0);
    free(members);
}

/* Returns how many files the engine would read from the pack. */
static uint64_t count_packed(void) {
    uint64_t n = catalog->count, found = 0, *ids = calloc(n, sizeof *ids);
    int64_t *places = calloc(n, sizeof *places);
    CHECK(ids && places);
    for (uint64_t id = 0; id < n; id++)
        ids[id] = id;
    monarch_engine_pack_order(engine, catalog, n, ids, places);
    for (uint64_t id = 0; id < n; id++)
        found += places[id] >= 0;
    free(ids);
    free(places);
    return found;
}

static void start_engine(void) {
    engine = monarch_engine_start(3, 3, 0, BLOCK, clients, fills);
    CHECK(engine);
    monarch_engine_publish(engine, writer, &control);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, handovers) == 0);
    CHECK(monarch_engine_handovers(engine, &handovers[0], 1) == 0);
    monarch_engine_source(engine, 0, root);
    monarch_engine_source(engine, NO_SOURCE, -1);
    monarch_engine_tier(engine, 0, copies);
    monarch_engine_tier(engine, NO_TIER, -1);
}

static void work_round(void) {
    int pack;
    start_engine();
    add_pack(&pack);
    CHECK(count_packed() > 80);
    fill_all();
    finish(MONARCH_DONE);
    CHECK(monarch_engine_pack_error(engine, 0) == 0);
    ask_about_all(MONARCH_CHECK);
    ask_about_all(MONARCH_COMPARE);
    finish(MONARCH_DONE);
    sum_and_collapse();
    order_under_grants();
    spoil_one();
    order_the_impossible();
    for (uint64_t id = 0; id < catalog->count; id++)
        if (is_in(id, MONARCH_PRESENT) && (id + next_copy) % 3 != 0)
            drop(id);
    fill_all();
    CHECK(ftruncate(pack, 5) == 0); /* the pack becomes shorter while it is read */
    ask_about_all(MONARCH_CHECK);
    uint32_t seen = __atomic_load_n(&clients->doorbell, __ATOMIC_SEQ_CST);
    wait_for(&seen);
    /* Stops the engine while it works. Unfinished orders, and results that were not taken, are
     * abandoned. */
    monarch_engine_stop(engine, 60000);
    close(handovers[0]);
    close(handovers[1]);
    close(pack);
    for (uint64_t id = 0; id < catalog->count; id++)
        if (is_in(id, MONARCH_FILLING))
            set_word(id, 0);
}

/* Removes the copies that no entry refers to. They were made by an engine that was stopped. */
static void remove_debris(void) {
    DIR *d = fdopendir(dup(copies));
    CHECK(d);
    rewinddir(d);
    for (struct dirent *e; (e = readdir(d));) {
        int is_known = e->d_name[0] == '.';
        uint64_t number = strtoull(e->d_name, NULL, 16);
        for (uint64_t id = 0; id < catalog->count && !is_known; id++)
            is_known = is_in(id, MONARCH_PRESENT) && MONARCH_WORD_COPY(entry(id)->word) == number;
        if (!is_known)
            CHECK(unlinkat(copies, e->d_name, 0) == 0);
    }
    closedir(d);
}

static void prepare(void) {
    char path[PATH_BYTES];
    struct stat st;
    struct monarch_entry nowhere = {.source = NO_SOURCE, .path_len = 7, .size = 5};
    make_files(root_path, 0, FILES);
    for (unsigned i = 0; i < MOVING; i++) {
        moving_path(i, path);
        int fd = open(path, O_WRONLY | O_CREAT, 0600);
        CHECK(fd >= 0 && ftruncate(fd, 2 * BLOCK) == 0 && close(fd) == 0);
    }
    root = open(root_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(root >= 0 && copies >= 0 && fstat(root, &st) == 0);
    /* The engine reads a file from the pack only if the file's mode lets the owner of the session
     * read it. All files here belong to this user. */
    control.owner = geteuid();
    control.sources = 2;
    control.source[0].dev = st.st_dev;
    control.source[0].path_len = (uint32_t)strlen(root_path);
    strcpy(control.source[0].path, root_path);
    clients = calloc(1, sizeof *clients);
    fills = calloc(1, sizeof *fills);
    CHECK(fills);
    CHECK(clients);
    writer = monarch_writer_new();
    CHECK(writer);
    publish_catalog(8, 256);
    add(&nowhere, 1, "nowhere");
}

int main(int argc, char **argv) {
    pthread_t thread[LOOKERS + 1];
    char path[PATH_BYTES];
    CHECK(argc == 5);
    int rounds = atoi(argv[3]);
    grants = atoi(argv[4]);
    root_path = argv[1];
    copies = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    prepare();
    for (uintptr_t i = 0; i < LOOKERS; i++)
        CHECK(pthread_create(&thread[i], NULL, look_things_up, (void *)(i + 1)) == 0);
    stop_a_waiting_scan();
    scan(3, 3000, 1);
    scan(2, 0, 0);
    scan(3, 0, -1);
    CHECK(catalog->count >= FILES + MOVING);
    moving_path(0, path);
    /* changes one file now, because the thread that changes files may start late */
    CHECK(truncate(path, BLOCK) == 0);
    CHECK(pthread_create(&thread[LOOKERS], NULL, move_files, (void *)77) == 0);
    for (int i = 0; i < rounds; i++) {
        work_round();
        remove_debris();
    }
    __atomic_store_n(&moving_over, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&over, 1, __ATOMIC_RELAXED);
    for (int i = 0; i <= LOOKERS; i++)
        pthread_join(thread[i], NULL);
    CHECK(is_enough());
    for (unsigned i = 0; i <= MONARCH_ABANDONED; i++)
        printf("%llu ", (unsigned long long)seen_status[i]);
    printf("%llu\n", (unsigned long long)found_present);
    for (int i = 0; i < CATALOGS; i++)
        free(all[i]);
    monarch_writer_free(writer);
    free(fills);
    free(clients);
    close(root);
    close(copies);
    return 0;
}
