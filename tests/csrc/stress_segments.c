/* Does what clients do, but with random paths and with damaged shared memory. Every block is
 * allocated with its exact size, so that a sanitizer sees an access even to the first byte after
 * the block.
 *
 *   paths ROOT SEED      makes a tree at ROOT, and resolves odd paths in it as the kernel does
 *   hashes ROOT SEED     hashes blocks of all sizes, whole and in pieces
 *   headers ROOT SEED    checks damaged headers, and counts those that are accepted as sound
 *   lookups ROOT SEED    looks files up in damaged catalogs that were accepted as sound */

/* segments.c is included here, because its functions that check a segment are static. */
#include "preload/session/segments.c"

#include "native.h"
#include "shared/path.h"
#include "shared/xxh3.h"
#include "stress.h"

#define FILES 300

static const char *root_path;
static uint64_t rng;
static struct monarch_control control_of_root;
static struct monarch_clients *clients;
static struct monarch_catalog *catalog;

static uint64_t any(uint64_t n) { return below(&rng, n); }

/* Returns a random number. In three of five cases, it is a number of a kind that often reveals
 * errors: it is small, or a power of two, or slightly below a power of two (2^64 included). In a
 * fourth case, it is less than twice the size of the catalog. */
static uint64_t any_number(void) {
    switch (any(5)) {
    case 0:
        return any(300);
    case 1:
        return (1ULL << any(64)) - any(3);
    case 2:
        return 0 - any(300);
    case 3:
        return any(catalog->bytes * 2);
    default:
        return random_of(&rng);
    }
}

/* --- a tree and its catalog ------------------------------------------------------------------- */

static void make_link(const char *target, const char *name) {
    char path[PATH_BYTES];
    CHECK(snprintf(path, sizeof path, "%s/%s", root_path, name) < PATH_BYTES);
    CHECK(symlink(target, path) == 0 || errno == EEXIST);
}

static void make_links(void) {
    char target[PATH_BYTES], name[PATH_BYTES];
    make_link(".", "here");
    make_link("..", "d01/up");
    make_link("d01/up/d02/", "slash");
    make_link("round", "round");
    make_link("nothing/at/all", "dangling");
    make_link("/", "out");
    make_link("../..", "d02/far_up");
    CHECK(snprintf(target, sizeof target, "%s//d03/./../d04", root_path) < PATH_BYTES);
    make_link(target, "absolute");
    for (int i = 0; i < 25; i++) {
        snprintf(name, sizeof name, "chain%d", i);
        snprintf(target, sizeof target, "chain%d", i - 1);
        make_link(i ? target : "d05", name);
    }
}

static void scan_root(void) {
    int root = open(root_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), finished = 0;
    struct stat st;
    CHECK(root >= 0 && sys_fstat(root, &st) == 0);
    control_of_root.sources = 1;
    control_of_root.source[0].dev = st.st_dev;
    control_of_root.source[0].ino = st.st_ino;
    control_of_root.source[0].path_len = (uint32_t)strlen(root_path);
    strcpy(control_of_root.source[0].path, root_path);
    clients = calloc(1, sizeof *clients);
    catalog = calloc(1, monarch_catalog_bytes(600, 1 << 15));
    CHECK(clients && catalog);
    monarch_catalog_init(catalog, 1, 600, 1 << 15);
    struct monarch_writer *writer = monarch_writer_new();
    CHECK(writer && monarch_catalog_move(writer, catalog, &control_of_root.generation) == 0);
    struct monarch_scan *s = monarch_scan_start(root, 0, 1, 0, &clients->doorbell);
    monarch_scan_allow(s, -1, -1);
    while (!finished) {
        struct monarch_batch *b = monarch_scan_take(s, &finished);
        uint64_t ids[1024], added = 0;
        if (b)
            CHECK(b->count <= 1024 && monarch_catalog_add(writer, b->entries, b->count, b->pool,
                                                          ids, &added) == b->count);
        monarch_batch_free(b);
    }
    monarch_scan_stop(s, 60000);
    close(root);
    CHECK(catalog->count >= FILES);
    for (uint64_t id = 0; id < 200; id++) {
        uint64_t word = monarch_word(MONARCH_PRESENT, 0, id % 3, id + 1), ino = 5000 + id, sum = id;
        if (monarch_entries(catalog)[id].kind == MONARCH_FILE)
            CHECK(monarch_publish(writer, 1, &id, &word, &ino, &sum, NULL) == 0);
    }
    monarch_writer_free(writer);
}

/* --- paths ------------------------------------------------------------------------------------ */

static void add_component(char *path, size_t room) {
    static const char *const odd[] = {"..",   ".",       "",         "here",   "d01",      "up",
                                      "..",   "slash",   "dangling", "out",    "d02",      "far_up",
                                      "...",  "chain24", "chain19",  "chain3", "absolute", "round",
                                      "d03/", "nothing", ".x",       "f00001", "f00042",   "..y"};
    char name[300];
    unsigned k = (unsigned)any(FILES);
    size_t used = strlen(path);
    if (any(6) == 0)
        snprintf(name, sizeof name, "d%02u/f%05u", k % DIRECTORIES, k);
    else if (any(300) == 0)
        memset(name, 'n', sizeof name - 1), name[255 + any(40)] = 0;
    else
        snprintf(name, sizeof name, "%s", odd[any(sizeof odd / sizeof *odd)]);
    snprintf(path + used, room - used, "/%s", name);
}

static void any_path(char *path, size_t room) {
    unsigned n = (unsigned)(any(40) ? any(9) : any(2500));
    snprintf(path, room, "%s", any(8) ? root_path : "");
    while (n--)
        add_component(path, room);
}

/* If `place` contains an entry, checks that it is the entry of the file that the kernel finds at
 * the path. */
static void check_place(const struct monarch_place *place, const char *path, int follow) {
    struct stat st;
    CHECK(place->entry >= MONARCH_UNKNOWN && place->entry < (int64_t)catalog->count);
    CHECK(strnlen(place->path, MONARCH_PATH_MAX) < MONARCH_PATH_MAX);
    if (place->entry < 0)
        return;
    const struct monarch_entry *e = &monarch_entries(catalog)[place->entry];
    CHECK(place->path_len == strlen(place->path));
    CHECK(sys_fstatat(AT_FDCWD, path, &st, follow ? 0 : AT_SYMLINK_NOFOLLOW) == 0);
    CHECK(st.st_ino == e->ino && st.st_dev == control_of_root.source[0].dev);
}

static uint64_t paths(void) {
    char text[MONARCH_PATH_MAX + 300], base[MONARCH_PATH_MAX + 300];
    uint64_t found = 0;
    for (int i = 0; i < 20000; i++) {
        struct monarch_place *place = malloc(sizeof *place);
        char *buffer = malloc(MONARCH_PATH_MAX);
        int follow = any(3) > 0;
        const char *rel;
        any_path(text, sizeof text);
        char *path = strdup(text);
        CHECK(place && path && buffer);
        place->path = buffer;
        buffer[0] = 0;
        if (monarch_prefix(&control_of_root, path, strlen(path), &rel) >= 0)
            CHECK(rel >= path && rel <= path + strlen(path));
        monarch_is_odd(path, strlen(path));
        monarch_resolve(&control_of_root, catalog, clients, "/", path, follow, place);
        check_place(place, path, follow);
        found += place->entry >= 0;
        /* Resolves the same path relative to the root. As in the library, `place` holds the working
         * directory before the call and the result after it. */
        size_t top = strlen(root_path);
        if (strncmp(path, root_path, top) == 0 && path[top]) {
            memcpy(place->path, root_path, top + 1);
            char *relative = strdup(path + top + strspn(path + top, "/"));
            CHECK(relative);
            monarch_resolve(&control_of_root, catalog, clients, place->path, relative, follow,
                            place);
            if (*relative)
                check_place(place, path, follow);
            free(relative);
        }
        any_path(base, sizeof base);
        base[MONARCH_PATH_MAX - 1 - any(2)] = 0;
        memcpy(place->path, base, strlen(base) + 1);
        monarch_resolve(&control_of_root, catalog, clients, place->path, path + (*path && any(2)),
                        follow, place);
        free(path);
        free(place);
        free(buffer);
    }
    return found;
}

/* --- hashes ----------------------------------------------------------------------------------- */

static uint64_t hashes(void) {
    uint64_t sum = 0;
    for (size_t n = 0; n < 2600; n += n < 1300 ? 1 : 1 + any(90)) {
        size_t off = any(8), piece = 1 + any(n + 1), at = 0;
        char *block = malloc(n + off), *data = block + off;
        struct xxh3_stream *stream = malloc(sizeof *stream);
        CHECK(block && stream);
        make_bytes((unsigned)n, 0, 0, data, n);
        monarch_xxh3_begin(stream);
        for (; at + piece < n; at += piece)
            monarch_xxh3_add(stream, data + at, piece);
        monarch_xxh3_add(stream, data + at, n - at);
        CHECK(monarch_xxh3_end(stream) == monarch_xxh3(data, n));
        sum ^= monarch_xxh3(data, n);
        free(stream);
        free(block);
    }
    return sum;
}

/* --- damaged segments ------------------------------------------------------------------------- */

static void damage(char *bytes, uint64_t n) {
    uint64_t word = any_number(), at = any((n + 7) / 8) * 8;
    if (any(4) == 0)
        at = any(n);
    memcpy(bytes + at, &word, n - at < 8 ? n - at : 8);
}

/* Returns a copy of the catalog in a block of `*size` bytes. The copy may be truncated, and its
 * header may be damaged. */
static struct monarch_catalog *damaged_catalog(uint64_t *size) {
    *size = any(3) ? catalog->bytes : 1 + any(catalog->bytes);
    char *bytes = malloc(*size);
    CHECK(bytes);
    memcpy(bytes, catalog, *size);
    for (uint64_t times = any(4); times; times--)
        damage(bytes, *size < sizeof *catalog ? *size : sizeof *catalog);
    return (struct monarch_catalog *)(void *)bytes;
}

static uint64_t headers(void) {
    uint64_t sound = 0;
    for (int i = 0; i < 3000; i++) {
        uint64_t size;
        struct monarch_catalog *c = damaged_catalog(&size);
        sound += (uint64_t)is_sound(c, size);
        free(c);
        struct monarch_control *k = malloc(sizeof *k);
        CHECK(k);
        *k = control_of_root;
        k->magic = MONARCH_MAGIC;
        k->version = MONARCH_VERSION;
        k->state = MONARCH_SERVING;
        for (uint64_t times = any(3); times; times--) {
            uint64_t word = any_number();
            memcpy((char *)k + any(any(2) ? 90 : sizeof *k - 8), &word, 8);
        }
        if (monarch_control_is_usable(k, any(10) ? sizeof *k : any(sizeof *k))) {
            const char *rel;
            sound++;
            monarch_prefix(k, root_path, strlen(root_path), &rel);
            monarch_prefix(k, "/another/place", 14, &rel);
        }
        free(k);
    }
    return sound;
}

static uint64_t lookups(void) {
    uint64_t found = 0;
    for (int i = 0; i < 3000; i++) {
        uint64_t size;
        struct monarch_catalog *c = damaged_catalog(&size);
        for (int n = 0; is_sound(c, size) && n < 20; n++) {
            unsigned k = (unsigned)any(FILES);
            char name[PATH_BYTES];
            name_of(k, name);
            found += monarch_find(c, 0, name, strlen(name)) >= 0;
            found += monarch_find_inode(c, 0, monarch_entries(catalog)[k].ino) >= 0;
            found += monarch_find_copy(c, (unsigned)any(3), 5000 + any(200)) >= 0;
            monarch_find_dropped(c, (unsigned)any(3), 5000 + any(200));
        }
        free(c);
    }
    return found;
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    root_path = argv[2];
    rng = strtoull(argv[3], NULL, 10);
    make_files(root_path, 0, FILES);
    make_links();
    scan_root();
    uint64_t found = strcmp(argv[1], "paths") == 0     ? paths()
                     : strcmp(argv[1], "hashes") == 0  ? hashes()
                     : strcmp(argv[1], "headers") == 0 ? headers()
                                                       : lookups();
    printf("%llu\n", (unsigned long long)found);
    free(clients);
    free(catalog);
    return 0;
}
