/* Tests peers/mac.c: MACs and seals, and what happens if libcrypto fails or lacks a function. */
#include <dlfcn.h>

/* The name of the function that libcrypto seems to lack; NULL: it lacks none. */
static const char *lacks;
static void *find_symbol(void *library, const char *name) {
    return lacks && __builtin_strcmp(lacks, name) == 0 ? (void *)0 : dlsym(library, name);
}
#define dlsym find_symbol
#include "peers/mac.c"

#include "checks.h"

static const unsigned char key[MONARCH_KEY_BYTES] = "the key";

/* The call that fails, and what it then returns. OpenSSL's functions return 1 on success, and 0 or
 * a negative number on failure. */
static enum { NONE, INIT, UPDATE, FINAL, CONTROL } fails;
static int failure, updates, freed;
static size_t added;
static int (*real_init)(void *, const void *, void *, const unsigned char *, const unsigned char *);
static int (*real_update)(void *, unsigned char *, int *, const unsigned char *, int);
static int (*real_final)(void *, unsigned char *, int *);
static int (*real_control)(void *, int, int, void *);
static void (*real_free)(void *);
static int init(void *c, const void *cipher, void *engine, const unsigned char *k,
                const unsigned char *iv) {
    return fails == INIT ? failure : real_init(c, cipher, engine, k, iv);
}
static int update(void *c, unsigned char *out, int *n, const unsigned char *in, int size) {
    return fails == UPDATE && ++updates == 1 ? failure : real_update(c, out, n, in, size);
}
static int final(void *c, unsigned char *out, int *n) {
    return fails == FINAL ? failure : real_final(c, out, n);
}
static int control(void *c, int type, int n, void *p) {
    return fails == CONTROL ? failure : real_control(c, type, n, p);
}
static void free_context(void *c) {
    freed++;
    real_free(c);
}
static void *no_context(void) { return NULL; }

static void replace(void) {
    CHECK(monarch_mac_is_there());
    real_init = evp.init;
    real_update = evp.update;
    real_final = evp.final;
    real_control = evp.control;
    real_free = evp.context_free;
    evp.init = init;
    evp.update = update;
    evp.final = final;
    evp.control = control;
    evp.context_free = free_context;
}

/* If any call of a MAC fails, the MAC is invalid, even if all later calls work. A seal with this
 * MAC is never right, not even if it is compared with itself. The next MAC is valid again. */
TEST(a_mac_after_a_failed_call_is_invalid) {
    const int failures[] = {0, -1};
    replace();
    struct monarch_mac *m = monarch_mac_new(key);
    unsigned char right[MONARCH_MAC_BYTES], seal[MONARCH_MAC_BYTES];
    SAME(monarch_seal(m, 5, "abcd", 4, NULL, right), 1);
    for (int way = INIT; way <= CONTROL; way++)
        for (int i = 0; i < 2; i++) {
            fails = (typeof(fails))way;
            failure = failures[i];
            updates = 0;
            SAME(monarch_seal(m, 5, "abcd", 4, (const struct monarch_digest *)key, seal), 0);
            updates = 0;
            SAME(monarch_is_sealed(m, 5, "abcd", 4, (const struct monarch_digest *)key, seal), 0);
            fails = NONE;
            SAME(monarch_is_sealed(m, 5, "abcd", 4, NULL, right), 1);
        }
    monarch_mac_free(m);
}

/* A seal is right only for its frame's number, for the frame's bytes, and for the digest. */
TEST(a_seal_is_that_of_its_frame) {
    struct monarch_mac *m = monarch_mac_new(key);
    struct monarch_digest digest = {{7}};
    unsigned char seal[MONARCH_MAC_BYTES];
    for (int has_digest = 0; has_digest < 2; has_digest++) {
        const struct monarch_digest *with = has_digest ? &digest : NULL;
        CHECK(monarch_seal(m, 1ULL << 40, "abcd", 4, with, seal));
        SAME(monarch_is_sealed(m, 1ULL << 40, "abcd", 4, with, seal), 1);
        SAME(monarch_is_sealed(m, 0, "abcd", 4, with, seal), 0);
        SAME(monarch_is_sealed(m, 1ULL << 40, "abcd", 3, with, seal), 0);
        SAME(monarch_is_sealed(m, 1ULL << 40, "abce", 4, with, seal), 0);
        SAME(monarch_is_sealed(m, 1ULL << 40, "abcd", 4, has_digest ? NULL : &digest, seal), 0);
        for (int i = 0; i < MONARCH_MAC_BYTES; i++) {
            seal[i] ^= 128;
            SAME(monarch_is_sealed(m, 1ULL << 40, "abcd", 4, with, seal), 0);
            seal[i] ^= 128;
        }
    }
    monarch_mac_free(m);
}

static int note_update(void *c, unsigned char *out, int *n, const unsigned char *in, int size) {
    CHECK(size > 0 && (in - (unsigned char *)key) == (ptrdiff_t)added);
    added += (size_t)size;
    updates++;
    return 1;
}

/* A long range is passed to libcrypto in parts, because the length of a part is an int. */
TEST(a_long_range_is_added_in_parts) {
    CHECK(monarch_mac_is_there());
    evp.update = note_update;
    struct monarch_mac *m = monarch_mac_new(key);
    const size_t sizes[] = {0, 1, MOST_AT_ONCE, MOST_AT_ONCE + 1, 5 * MOST_AT_ONCE - 1};
    const int parts[] = {0, 1, 1, 2, 5};
    for (int i = 0; i < 5; i++) {
        added = 0;
        updates = 0;
        monarch_mac_add(m, key, sizes[i]);
        CHECK(added == sizes[i]);
        SAME(updates, parts[i]);
    }
    monarch_mac_free(m);
}

/* A libcrypto that lacks one of the functions counts as missing. Then no MAC can be made. */
TEST(a_library_that_lacks_a_function_is_none) {
    const char *names[] = {"EVP_CIPHER_CTX_new",  "EVP_CIPHER_CTX_free", "EVP_aes_128_gcm",
                           "EVP_EncryptInit_ex",  "EVP_EncryptUpdate",   "EVP_EncryptFinal_ex",
                           "EVP_CIPHER_CTX_ctrl", "CRYPTO_memcmp"};
    void *library = dlopen("libcrypto.so.3", RTLD_NOW);
    library = library ? library : dlopen("libcrypto.so.1.1", RTLD_NOW);
    CHECK(library && find(library));
    for (int i = 0; i < 8; i++) {
        lacks = names[i];
        SAME(find(library), 0);
    }
    SAME(monarch_mac_is_there(), 0); /* the first call decides */
    CHECK(!monarch_mac_new(key));
    lacks = NULL;
    SAME(monarch_mac_is_there(), 0);
    dlclose(library);
}

/* If libcrypto has no memory, or refuses the key, no MAC is made and nothing is left behind. */
TEST(a_key_is_taken_or_nothing_is_left) {
    replace();
    fails = INIT;
    failure = 0;
    CHECK(!monarch_mac_new(key));
    SAME(freed, 1);
    fails = NONE;
    void *(*make_context)(void) = evp.context_new;
    evp.context_new = no_context;
    CHECK(!monarch_mac_new(key));
    evp.context_new = make_context;
    monarch_mac_free(NULL);
    monarch_mac_free(monarch_mac_new(key));
    SAME(freed, 3);
}
