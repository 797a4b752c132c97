#include "scan/walk.c"
#include "scan/revalidate.c"

#include "checks.h"

static struct monarch_scan *s;
static int root;
static uint32_t bell;

static void make(void) {
    struct stat st;
    root = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(fstat(root, &st) == 0);
    s = calloc(1, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    s->root = root;
    s->dev = st.st_dev;
    s->source = 2;
    s->threads = 1; /* there is no other thread, so this one examines all names itself */
    s->is_deep = s->is_whole = 1;
    s->may_look[0] = s->may_look[1] = ALL_NAMES;
    s->doorbell = &bell;
}

static void done(void) {
    while (monarch_has_tasks(s))
        free(monarch_take_task(s));
    free(s);
    close(root);
}

/* Walks `from` and all directories below it. Returns the batch with all entries. */
static struct monarch_batch *walk(const char *from) {
    struct monarch_batch *batch = NULL;
    struct task *t = monarch_new_task(s, from, 0);
    t->is_first = 1;
    monarch_walk_directory(s, &batch, t);
    free(t);
    while (monarch_has_tasks(s)) {
        t = monarch_take_task(s);
        if (t->names)
            monarch_look_at_names(s, &batch, t);
        else
            monarch_walk_directory(s, &batch, t);
        free(t);
    }
    return batch;
}

static const struct monarch_entry *entry_of(const struct monarch_batch *b, const char *path) {
    for (uint64_t i = b->count; i-- > 0;)
        if (strcmp(b->pool + b->entries[i].path, path) == 0)
            return &b->entries[i];
    return NULL;
}

static void make_tree(void) {
    CHECK(mkdir("d", 0700) == 0 && mkdir("d/e", 0700) == 0);
    close(make_file("d/a", 7, 1));
    close(make_file("d/e/b", 8, 1));
    CHECK(symlink("../a", "d/e/l") == 0 && mkfifo("d/p", 0600) == 0);
}

TEST(only_dot_and_dot_dot_are_dots) {
    const char *dots[] = {".", ".."}, *others[] = {"...", ".a", "..a", "a", "a.", "a.."};
    for (int i = 0; i < 2; i++)
        SAME(is_dot(dots[i]), 1);
    for (int i = 0; i < 6; i++)
        SAME(is_dot(others[i]), 0);
}

/* A walk reports each file once, with its attributes and its place in the listing. It reports each
 * directory twice: once when it finds the directory, and again after it has read the directory. The
 * second report also says how many names the directory contains. */
TEST(a_walk_reports_everything) {
    make();
    make_tree();
    s->may_look[0] = 1000;
    struct monarch_batch *b = walk("");
    SAME(s->may_look[0], 1000 - 6); /* the six names were subtracted from the allowance */
    CHECK(b && s->errors == 0 && s->busy == 0);
    const char *paths[] = {"", "d", "d/e", "d/a", "d/e/b", "d/e/l", "d/p"};
    const unsigned kinds[] = {MONARCH_DIR,  MONARCH_DIR,  MONARCH_DIR,  MONARCH_FILE,
                              MONARCH_FILE, MONARCH_LINK, MONARCH_OTHER};
    const unsigned names[] = {1, 3, 2};
    SAME(b->count, 7 + 3);
    for (int i = 0; i < 7; i++) {
        const struct monarch_entry *e = entry_of(b, paths[i]);
        struct stat st;
        CHECK(e && e->kind == kinds[i] && e->source == 2);
        CHECK(fstatat(root, i ? paths[i] : ".", &st, AT_SYMLINK_NOFOLLOW) == 0);
        CHECK(e->ino == st.st_ino && e->size == (uint64_t)st.st_size);
        SAME(e->sum, i < 3 ? names[i] + 1 : 0);
        /* A place in a listing is less than the number of names in the directory. */
        if (i >= 3)
            CHECK(e->place < names[i == 4 || i == 5 ? 2 : 1]);
    }
    CHECK(strcmp(b->pool + entry_of(b, "d/e/l")->copy_ino, "../a") == 0);
    CHECK(entry_of(b, "d/e/l")->place != entry_of(b, "d/e/b")->place);
    SAME(monarch_looks(), 6);
    CHECK(s->up_ino);
    monarch_batch_free(b);
    done();
}

/* A directory with many names is divided into portions. Every name still has a place of its own in
 * the directory's listing. */
TEST(a_large_directory_is_shared_out) {
    for (int threads = 1; threads < 3; threads++) {
        char path[300];
        const int n = 5 * PORTION + 1;
        make();
        s->threads = threads;
        CHECK(mkdir("d", 0700) == 0 || errno == EEXIST);
        for (int i = 0; i < n; i++) {
            snprintf(path, sizeof path, "d/%0*d", i % 2 ? 200 : 3, i);
            if (threads == 1)
                close(make_file(path, 0, 1));
        }
        struct monarch_batch *b = walk("");
        char places[64] = {0};
        for (int i = 0; i < n; i++) {
            snprintf(path, sizeof path, "d/%0*d", i % 2 ? 200 : 3, i);
            const struct monarch_entry *e = entry_of(b, path);
            CHECK(e && e->place < (unsigned)n && !places[e->place]++);
        }
        SAME(entry_of(b, "d")->sum, n + 1);
        monarch_batch_free(b);
        done();
    }
}

/* If a scan covers only parts of a source, it does not report how many names a directory has. It
 * enters subdirectories only if it is deep. */
TEST(a_scan_of_parts_reports_the_named_directories) {
    for (int is_deep = 0; is_deep < 2; is_deep++) {
        make();
        if (!is_deep)
            make_tree();
        s->is_deep = is_deep;
        s->is_whole = 0;
        struct monarch_batch *b = walk("d");
        SAME(b->count, is_deep ? 6 : 4);
        SAME(entry_of(b, "d/e/b") != NULL, is_deep);
        SAME(entry_of(b, "d")->sum, 0);
        SAME(entry_of(b, "d")->place, MONARCH_NO_PLACE);
        monarch_batch_free(b);
        done();
    }
}

/* The path of a directory that a caller names is opened component by component. Each component must
 * be a directory of the source, so links and ".." are refused. */
TEST(a_named_directory_is_no_way_out_of_the_source) {
    const struct {
        const char *path;
        int error;
    } cases[] = {{"", 0},          {"d", 0},         {"d/e", 0},        {"d/e/", 0},
                 {"longer/e", 0},  {"none", ENOENT}, {"d/a", ENOTDIR},  {"l", ENOTDIR},
                 {"l/e", ENOTDIR}, {"..", ENOTDIR},  {"d/..", ENOTDIR}, {"d/./e", ENOTDIR},
                 {"/d", ENOTDIR},  {"d//e", ENOTDIR}};
    make();
    make_tree();
    CHECK(symlink("d", "l") == 0 && mkdir("longer", 0700) == 0 && mkdir("longer/e", 0700) == 0);
    int before = open_descriptors();
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        int fd = open_by_parts(root, cases[i].path);
        SAME(fd >= 0, cases[i].error == 0);
        if (fd >= 0)
            close(fd);
        else
            CHECK(errno == cases[i].error || errno == ELOOP);
        SAME(open_descriptors(), before);
    }
    static char longest[NAME_MAX + 2];
    memset(longest, 'a', NAME_MAX + 1);
    SAME(open_by_parts(root, longest), -1);
    SAME(errno, ENAMETOOLONG);
    done();
}

/* A name that cannot be read counts as an error. A name that no longer exists does not. */
TEST(only_failures_are_counted) {
    make();
    close(make_file("file", 1, 1));
    struct monarch_batch *b = walk("none");
    CHECK(!b && s->errors == 0);
    b = walk("file");
    CHECK(!b && s->errors == 1 && s->error == ENOTDIR);
    visit(s, &b, "none", 0, 1, 0);
    CHECK(!b && s->errors == 1);
    visit(s, &b, "file/x", 0, 1, 0);
    CHECK(!b && s->errors == 2);
    done();
}

/* Each operation at the source counts against the scan's rate limit. A step that needs no operation
 * at the source is not counted. */
TEST(each_question_to_the_source_is_paced) {
    make();
    make_tree();
    struct monarch_batch *b = NULL;
    s->pace.interval_ns = 1;
    visit(s, &b, "d/a", 0, 1, 0);
    CHECK(s->pace.next_ns);
    s->pace.next_ns = 0;
    close_listing(s, &b, "d", root, 3);
    CHECK(s->pace.next_ns);
    s->pace.next_ns = 0;
    s->is_whole = 0; /* a scan of parts makes no listings, so it does not ask the source */
    close_listing(s, &b, "d", root, 3);
    CHECK(!s->pace.next_ns && b->count == 2);
    struct task *none = monarch_new_task(s, "none", 0);
    monarch_walk_directory(s, &b, none);
    CHECK(s->pace.next_ns);
    free(none);
    monarch_batch_free(b);
    done();
}

/* A batch tells how many directories had been renamed before its first file was examined. */
TEST(a_batch_tells_of_renames_before_its_first_look) {
    make();
    make_tree();
    struct monarch_batch *b = NULL;
    struct monarch_clients *clients = calloc(1, sizeof *clients);
    s->clients = clients;
    clients->renames = 4;
    visit(s, &b, "d/a", 0, 1, 0);
    clients->renames = 5;
    visit(s, &b, "d/e", 0, 1, 0);
    CHECK(b->renames == 4 && b->count == 2);
    b->count = b->pool_used = 0;
    close_listing(s, &b, "d", root, 3);
    SAME(b->renames, 5);
    monarch_batch_free(b);
    free(clients);
    done();
}

/* A file system that is mounted below the source does not belong to the source. The directory on
 * which it is mounted is not walked. It is reported with the inode number that the listing of its
 * parent directory shows. */
TEST(a_mounted_file_system_is_not_walked) {
    make();
    make_tree();
    struct monarch_batch *b = NULL;
    s->dev++;
    visit(s, &b, "d", 3, 77, 0);
    CHECK(b->count == 1 && b->entries[0].kind == MONARCH_OTHER && b->entries[0].ino == 77);
    CHECK(!monarch_has_tasks(s));
    visit(s, &b, "d/a", 4, 78, 0); /* a file is never taken for a mounted file system */
    CHECK(b->entries[1].kind == MONARCH_FILE && b->entries[1].ino != 78);
    s->dev--;
    visit(s, &b, "d", 3, 77, 0);
    CHECK(b->entries[2].kind == MONARCH_DIR && monarch_has_tasks(s));
    monarch_batch_free(b);
    done();
}

/* A name whose path would be too long is left out. The names after it are still examined. */
TEST(a_path_that_is_too_long_is_left_out) {
    make();
    struct monarch_batch *b = NULL;
    static char deep[MONARCH_PATH_MAX];
    for (size_t i = 0; i < MONARCH_PATH_MAX - 4; i++)
        deep[i] = i % 100 == 99 ? '/' : 'd';
    struct task *t = monarch_new_task(s, deep, 64);
    const char *names[] = {"too long", "ab"};
    for (int i = 0; i < 2; i++) {
        uint64_t ino = 5;
        memcpy(t->path + t->text, &ino, sizeof ino);
        strcpy(t->path + t->text + sizeof ino, names[i]);
        t->text += sizeof ino + strlen(names[i]) + 1;
        t->names++;
    }
    uint64_t before = monarch_looks();
    monarch_look_at_names(s, &b, t);
    SAME(monarch_looks() - before, 1); /* only the second name was looked up */
    CHECK(!b);
    free(t);
    done();
}

/* A directory is settled if both its mtime and its ctime are more than YOUNG_NS older than
 * `since_ns`. At the time `since_ns`, the catalog was still empty. */
TEST(a_directory_is_settled_if_it_is_old) {
    struct stat st;
    struct monarch_writer *w = monarch_writer_new();
    make();
    CHECK(fstat(root, &st) == 0);
    int64_t changed = st.st_ctim.tv_sec * 1000000000LL + st.st_ctim.tv_nsec;
    for (int more = -1; more < 2; more++) {
        s->writer = NULL;
        s->since_ns = changed + YOUNG_NS + more;
        SAME(is_settled(s, root), 0);
        s->writer = w;
        SAME(is_settled(s, root), more == 1);
    }
    struct timespec times[] = {{0, UTIME_OMIT}, {1000, 0}};
    CHECK(futimens(root, times) == 0 && fstat(root, &st) == 0); /* only the ctime is recent now */
    changed = st.st_ctim.tv_sec * 1000000000LL + st.st_ctim.tv_nsec;
    for (int more = 0; more < 2; more++) {
        s->since_ns = changed + YOUNG_NS + more;
        SAME(is_settled(s, root), more);
    }
    times[1].tv_sec = st.st_ctim.tv_sec + 1000;
    CHECK(futimens(root, times) == 0); /* now the mtime is recent */
    s->since_ns = changed + 900 * 1000000000LL;
    SAME(is_settled(s, root), 0);
    monarch_writer_free(w);
    done();
}

/* A file in a settled directory is not looked up at the source if the catalog already has it. The
 * name in the directory must still have the inode number that the catalog has for the file. */
TEST(a_known_file_is_not_asked_about) {
    struct monarch_writer *w = monarch_writer_new();
    struct monarch_entry e;
    make();
    close(make_file("file", 5, 1));
    w->catalog = make_catalog(64);
    struct monarch_entry *mine = add_entry(
        w->catalog, "file",
        (struct monarch_entry){.kind = MONARCH_FILE, .source = 2, .ino = 7, .size = 99, .word = 3});
    SAME(is_known(s, "file", 7, &e), 0);
    s->writer = w;
    SAME(is_known(s, "file", 7, &e), 1);
    CHECK(e.size == 99 && e.word == 0);
    SAME(is_known(s, "file", 8, &e), 0);
    SAME(is_known(s, "other", 7, &e), 0);
    struct monarch_batch *b = NULL;
    uint64_t before = monarch_looks();
    visit(s, &b, "file", 4, 7, 1);
    CHECK(b->count == 1 && b->entries[0].size == 99 && b->entries[0].place == 4);
    SAME(monarch_looks(), before);
    visit(s, &b, "file", 4, 7, 0); /* not settled: the directory may have changed */
    CHECK(b->count == 2 && b->entries[1].size == 5);
    SAME(monarch_looks(), before + 1);
    mine->kind = MONARCH_LINK;
    SAME(is_known(s, "file", 7, &e), 0);
    monarch_batch_free(b);
    free(w->catalog);
    monarch_writer_free(w);
    done();
}

/* --- revalidate.c ----------------------------------------------------------------------------- */

/* Makes a catalog of what a walk has found, with listings if `is_listed`. */
static struct monarch_catalog *catalog_of(const struct monarch_batch *b, int is_listed) {
    struct monarch_catalog *c = make_catalog(64);
    uint64_t ids[64], added = 0;
    SAME(monarch_add(c, b->entries, b->count, b->pool, ids, &added), b->count);
    if (is_listed)
        CHECK(monarch_catalog_list(c, INT64_MAX, 0) > 0);
    return c;
}

/* A listing is valid as long as its directory has exactly the names of the listing, in the same
 * order, and the directory's times are those in the catalog. */
TEST(a_listing_holds_until_a_name_changes) {
    make();
    make_tree();
    struct monarch_batch *b = walk("");
    struct monarch_catalog *c = catalog_of(b, 1);
    uint64_t d = (uint64_t)monarch_find(c, 2, "d", 1), top = (uint64_t)monarch_find(c, 2, "", 0);
    struct monarch_entry *mine = monarch_table(c) + d;
    int before = open_descriptors();
    SAME(monarch_listing_holds(c, root, d), 1);
    SAME(monarch_listing_holds(c, root, top), 1);
    uint64_t sum = mine->sum;
    uint32_t *names = (uint32_t *)((char *)c + c->names_at) + monarch_listing_first(sum);
    uint32_t first = names[0];
    names[0] = names[1];
    SAME(monarch_listing_holds(c, root, d), 0); /* one name differs */
    names[0] = first;
    mine->sum = monarch_listing(monarch_listing_first(sum), 2);
    SAME(monarch_listing_holds(c, root, d), 0); /* one name too few */
    mine->sum = 0;
    SAME(monarch_listing_holds(c, root, d), 0);
    mine->sum = sum;
    mine->mtime_ns++;
    SAME(monarch_listing_holds(c, root, d), 0);
    mine->mtime_ns--;
    SAME(monarch_listing_holds(c, root, d), 1);
    CHECK(unlink("d/a") == 0);
    mine->mtime_ns = mine->ctime_ns = 0;
    SAME(monarch_listing_holds(c, root, d), 0);
    SAME(monarch_listing_holds(c, -1, d), 0);
    SAME(open_descriptors(), before);
    monarch_batch_free(b);
    free(c);
    done();
}

/* A changed directory is marked, together with those of its files that have changed. A second call
 * does not mark it again. */
TEST(changed_directories_and_their_files_are_marked) {
    for (int is_listed = 0; is_listed < 2; is_listed++) {
        struct monarch_engine *e = make_engine(4096);
        struct monarch_source source = {.dev = 77};
        make();
        if (!is_listed)
            make_tree();
        struct monarch_batch *b = walk("");
        struct monarch_catalog *c = catalog_of(b, is_listed);
        uint64_t at = 0;
        SAME(monarch_compare_directories(c, e->clients, &source, 2, root, is_listed, &at, 1000), 0);
        SAME(at, c->count);
        int64_t a = monarch_find(c, 2, "d/a", 3), d = monarch_find(c, 2, "d", 1),
                deep = monarch_find(c, 2, "d/e/b", 5), l = monarch_find(c, 2, "d/e/l", 5);
        struct monarch_entry *t = monarch_table(c);
        t[a].size++;
        t[deep].size++;
        t[d].mtime_ns++;
        at = 0; /* directories of another source are not compared */
        SAME(monarch_compare_directories(c, e->clients, &source, 1, root, is_listed, &at, 1000), 0);
        at = 0;
        SAME(monarch_compare_directories(c, e->clients, &source, 2, root, is_listed, &at, 1000), 1);
        SAME(monarch_is_changed(e->clients, 77, t[d].ino), 1);
        SAME(monarch_is_changed(e->clients, 77, t[a].ino), 1);
        SAME(monarch_is_changed(e->clients, 77, t[deep].ino), 0); /* its directory is unchanged */
        SAME(monarch_is_changed(e->clients, 77, t[l].ino), 0);
        /* if is_listed is 1, the call has stored the directory's new times in the catalog */
        SAME(is_same(root, c, &t[d]), is_listed);
        at = 0;
        SAME(monarch_compare_directories(c, e->clients, &source, 2, root, is_listed, &at, 1000), 0);
        /* a file without a place in a listing is compared even if its directory is unchanged */
        t[deep].place = MONARCH_NO_PLACE;
        at = 0;
        SAME(monarch_compare_directories(c, e->clients, &source, 2, root, is_listed, &at, 1000), 0);
        SAME(monarch_is_changed(e->clients, 77, t[deep].ino), 1);
        /* each call ends at its limit, and the next call goes on from there */
        uint64_t calls = 0;
        for (at = 0; at < c->count; calls++) {
            uint64_t from = at;
            monarch_compare_directories(c, e->clients, &source, 2, root, is_listed, &at, 1);
            CHECK(at > from);
        }
        CHECK(calls >= 3);
        monarch_batch_free(b);
        free(c);
        free_engine(e);
        done();
    }
}
