/* Tests publish/listing.c, which makes the listings of directories, and publish/find.c, which finds
 * entries. */
#include "publish/listing.c"
#include "publish/find.c"

#include "checks.h"

static struct monarch_catalog *c;
static struct monarch_engine *e;

static struct monarch_entry *add(const char *path, unsigned kind, uint32_t place) {
    return add_entry(
        c, path,
        (struct monarch_entry){.kind = (uint8_t)kind, .place = place, .ino = 100 + c->count});
}

static void make(void) {
    c = make_catalog(64);
    e = make_engine(4096);
}

static void done(void) {
    free(c);
    free_engine(e);
}

static int64_t id_of(const char *path) { return monarch_find(c, 0, path, strlen(path)); }

/* --- find.c ----------------------------------------------------------------------------------- */

/* A file lies in the directory that contains its name. In a deep search, it also lies in all
 * directories above that one. */
TEST(a_file_lies_in_the_directories_above_it) {
    const struct {
        const char *path, *directory;
        int flat, deep;
    } cases[] = {{"a", "", 1, 1},      {"d/a", "", 0, 1},      {"d/a", "d", 1, 1},
                 {"d/e/a", "d", 0, 1}, {"d/e/a", "d/e", 1, 1}, {"da", "d", 0, 0},
                 {"d", "d", 0, 0},     {"dd/a", "d", 0, 0},    {"x/a", "d", 0, 0},
                 {"d/a", "d/a", 0, 0}};
    make();
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t known = id_of(cases[i].path);
        struct monarch_entry *entry =
            known < 0 ? add(cases[i].path, MONARCH_FILE, 0) : monarch_table(c) + known;
        size_t n = strlen(cases[i].directory);
        SAME(lies_in(c, entry, cases[i].directory, n, 0), cases[i].flat);
        SAME(lies_in(c, entry, cases[i].directory, n, 1), cases[i].deep);
    }
    done();
}

/* The search for files without a copy starts at a given entry, and examines at most a given number
 * of entries. It finds no directories and no files of other sources. Nor does it find files that
 * are wanted, files that are claimed, or files whose old copy is being removed. */
TEST(only_files_that_can_be_filled_ahead_are_found) {
    make();
    char path[16];
    for (int i = 0; i < 12; i++) {
        snprintf(path, sizeof path, "d/%c", 'a' + i);
        add(path, i == 2 ? MONARCH_LINK + 0 : MONARCH_FILE, 0);
        if (i == 2)
            monarch_table(c)[i].kind = MONARCH_DIR;
    }
    struct monarch_entry *t = monarch_table(c);
    t[3].word = monarch_word(MONARCH_WANTED, 0, 0, 0);
    t[4].source = 1;
    t[5].word = monarch_word(MONARCH_ABSENT, 0, 0, 9); /* an old copy is being removed */
    e->clients->claim[6] = monarch_claim_of(6, 0, monarch_now_ns());
    const uint64_t right[] = {0, 1, 7, 8, 9, 10, 11};
    uint64_t ids[12], at = 0, n = 0;
    SAME(monarch_find_absent(c, e->clients, 0, "d", 1, 0, &at, UINT64_MAX, ids, 12), 7);
    SAME(at, 12);
    for (int i = 0; i < 7; i++)
        SAME(ids[i], right[i]);
    for (at = 0; at < 12;) {
        uint64_t before = at,
                 got = monarch_find_absent(c, e->clients, 0, "d", 1, 0, &at, 3, ids, 12);
        SAME(at - before, 3);
        n += got;
    }
    SAME(n, 7);
    for (at = n = 0; at < 12;) {
        uint64_t got = monarch_find_absent(c, e->clients, 0, "d", 1, 0, &at, 100, ids, 2);
        CHECK(got <= 2 && (got == 2 || at == 12));
        n += got;
    }
    SAME(n, 7);
    at = 0;
    SAME(monarch_find_absent(c, e->clients, 0, "d", 1, 0, &at, 100, ids, 0), 0);
    SAME(at, 0);
    at = 50;
    SAME(monarch_find_absent(c, e->clients, 0, "d", 1, 0, &at, 10, ids, 9), 0);
    done();
}

/* Paths are looked up below a common prefix. A path that is too long, or whose end lies before its
 * start, is not found. */
TEST(paths_are_found_below_their_prefix) {
    make();
    add("p/a", MONARCH_FILE, 0);
    add("p/bc", MONARCH_FILE, 0);
    const char pool[] = "abcx";
    const uint64_t starts[] = {0, 1, 3, 4, 2, 3};
    int64_t ids[5];
    strcpy(e->control->source[0].path, "/nowhere");
    monarch_find_all(e->control, e->clients, c, 0, "p/", 2, pool, starts, 5, ids);
    CHECK(ids[0] == 0 && ids[1] == 1 && ids[2] == -1 && ids[3] == -1 && ids[4] == -1);
    static char prefix[MONARCH_PATH_MAX];
    memset(prefix, 'p', sizeof prefix);
    monarch_find_all(e->control, e->clients, c, 0, prefix, MONARCH_PATH_MAX - 1, pool, starts, 1,
                     ids);
    SAME(ids[0], -1);
    done();
}

/* --- listing.c -------------------------------------------------------------------------------- */

/* The parent of an entry is the directory that contains its name. The root has no parent, and
 * neither has an entry whose directory is unknown. */
TEST(a_parent_is_the_directory_above) {
    make();
    struct monarch_entry *root = add("", MONARCH_DIR, 0), *d = add("d", MONARCH_DIR, 0),
                         *deep = add("d/ee", MONARCH_DIR, 0), *f = add("d/ee/f", MONARCH_FILE, 0),
                         *lost = add("x/y", MONARCH_FILE, 0);
    const int64_t none = -1;
    struct monarch_entry *all[] = {root, d, deep, f, lost};
    const int64_t right[] = {none, 0, 1, 2, none};
    for (int i = 0; i < 5; i++) {
        SAME(monarch_catalog_parent(c, all[i]), right[i]);
        for (int64_t last = -1; last < 4; last++)
            SAME(parent_of(c, all[i], last), right[i]);
    }
    SAME(length_of_parent("a/b/c", 5), 3);
    SAME(length_of_parent("abc", 3), 0);
    SAME(length_of_parent("/a", 2), 0);
    done();
}

/* After a directory is unlisted, readers no longer use its listing. The operation does nothing to
 * an entry that is not a directory. */
TEST(an_unlisted_directory_has_no_listing) {
    make();
    struct monarch_entry *d = add("d", MONARCH_DIR, 0), *f = add("d/f", MONARCH_FILE, 0);
    d->copy_ino = f->copy_ino = 7;
    monarch_catalog_unlist(c, 1);
    monarch_catalog_unlist(c, -1);
    CHECK(d->copy_ino == 7 && f->copy_ino == 7);
    monarch_catalog_unlist(c, 0);
    CHECK(d->copy_ino == 0 && f->copy_ino == 7);
    done();
}

/* A listing contains all names of its directory, in the order of the source. It is made only if all
 * these names are known. Readers use the listing only if the times of the directory are old
 * enough. */
TEST(listings_have_all_names_in_order) {
    make();
    const int64_t young = 1000;
    struct monarch_entry *root = add("", MONARCH_DIR, 0);
    struct monarch_entry *d = add("d", MONARCH_DIR, 1), *g = add("g", MONARCH_DIR, 0),
                         *h = add("h", MONARCH_DIR, 2), *k = add("k", MONARCH_DIR, 3),
                         *y = add("y", MONARCH_DIR, 4), *z = add("z", MONARCH_DIR, 5);
    root->sum = 6 + 1;
    add("d/b", MONARCH_FILE, 1);
    add("d/a", MONARCH_FILE, 0);
    d->sum = 2 + 1;
    g->sum = 0 + 1; /* it is empty */
    add("h/a", MONARCH_FILE, 0);
    h->sum = 2 + 1; /* a name is missing */
    add("k/a", MONARCH_FILE, 0);
    add("k/new", MONARCH_FILE, MONARCH_NO_PLACE); /* found by a client */
    k->sum = 1 + 1;
    add("y/a", MONARCH_FILE, 0);
    y->sum = 1 + 1;
    y->mtime_ns = young; /* too young for readers */
    add("z/a", MONARCH_FILE, 0);
    z->sum = 1 + 1;
    z->ctime_ns = young;
    SAME(monarch_catalog_list(c, young, 0), 3);
    const uint32_t *names = monarch_names(c);
    CHECK(monarch_listing_length(root->sum) == 6 && root->copy_ino == root->sum);
    const char *of_root[] = {"g", "d", "h", "k", "y", "z"};
    for (int i = 0; i < 6; i++)
        SAME(names[monarch_listing_first(root->sum) + (uint64_t)i], id_of(of_root[i]));
    CHECK(monarch_listing_length(d->sum) == 2 && d->copy_ino == d->sum);
    SAME(names[monarch_listing_first(d->sum)], id_of("d/a"));
    SAME(names[monarch_listing_first(d->sum) + 1], id_of("d/b"));
    CHECK(g->sum && monarch_listing_length(g->sum) == 0 && g->copy_ino == g->sum);
    CHECK(!h->sum && !h->copy_ino && !k->sum && !k->copy_ino);
    CHECK(y->sum && !y->copy_ino && z->sum && !z->copy_ino);
    uint64_t used = names_used(c, 1);
    CHECK(used >= 6 + 2 + 2 && used <= 14);
    SAME(names_used(c, 0), 0);
    done();
}

/* The listings of one source are added behind those of another source, which stay unchanged. If the
 * catalog lacks room for the names of a directory, the directory gets no listing. */
TEST(listings_of_a_further_source_leave_the_others) {
    make();
    struct monarch_entry *root = add("", MONARCH_DIR, 0);
    root->sum = 1 + 1;
    add("a", MONARCH_FILE, 0);
    SAME(monarch_catalog_list(c, 1000, 0), 1);
    uint64_t first = root->sum;
    struct monarch_entry *other =
        add_entry(c, "", (struct monarch_entry){.kind = MONARCH_DIR, .source = 1});
    add_entry(c, "b", (struct monarch_entry){.kind = MONARCH_FILE, .source = 1});
    struct monarch_entry *large =
        add_entry(c, "l", (struct monarch_entry){.kind = MONARCH_DIR, .source = 1, .place = 1});
    other->sum = 2 + 1;
    large->sum = c->capacity - 3 + 1 + 1;
    SAME(monarch_catalog_list(c, 1000, 1), 1);
    CHECK(root->sum == first && monarch_names(c)[0] == 1);
    CHECK(monarch_listing_first(other->sum) == 1 && monarch_listing_length(other->sum) == 2);
    CHECK(monarch_names(c)[1] == 3 && monarch_names(c)[2] == 4 && !large->sum);
    SAME(names_used(c, 2), 3);
    done();
}

/* If a client finds a new file, the file is added without a place in the listing of its directory.
 * So the directory, here the root, gets no listing. */
TEST(a_new_file_of_the_root_makes_its_listing_incomplete) {
    make();
    struct monarch_entry *root = add("", MONARCH_DIR, 0);
    root->sum = 1 + 1;
    add("a", MONARCH_FILE, 0);
    add("new", MONARCH_FILE, MONARCH_NO_PLACE);
    SAME(monarch_catalog_list(c, 1000, 0), 0);
    CHECK(!root->sum && !root->copy_ino);
    done();
}

/* No listing is made from an entry whose directory is not in the catalog, or from an entry that was
 * found outside a walk. For such entries, nothing must be written in front of the table's first
 * entry. */
TEST(an_entry_without_its_directory_changes_nothing_else) {
    make();
    add("gone/file", MONARCH_FILE, MONARCH_NO_PLACE);
    add("gone/other", MONARCH_FILE, 0);
    char ones[sizeof(struct monarch_entry)], *end = (char *)monarch_table(c);
    memset(ones, 0xFF, sizeof ones);
    memcpy(end - sizeof ones, ones, sizeof ones);
    SAME(monarch_catalog_list(c, 1000, 0), 0);
    SAME(memcmp(end - sizeof ones, ones, sizeof ones), 0);
    done();
}
