/* GMAC, computed by the installed libcrypto. The library is loaded at its first use, because a
 * daemon without peers does not need it. One build works with every version from OpenSSL 1.1.0 on,
 * because the types of these functions have not changed since. */
#include "peers/mac.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* EVP_CTRL_AEAD_GET_TAG of <openssl/evp.h>. */
#define GET_TAG 0x10
/* Maximum number of bytes for one call of EVP_EncryptUpdate, which takes an int. It must be a
 * multiple of the cipher's block size. */
#define MOST_AT_ONCE (1UL << 30)

/* The function types are those of <openssl/evp.h>, with `void` in place of its structs. */
static struct {
    void *(*context_new)(void);
    void (*context_free)(void *context);
    const void *(*aes_128_gcm)(void);
    int (*init)(void *context, const void *cipher, void *engine, const unsigned char *key,
                const unsigned char *iv);
    int (*update)(void *context, unsigned char *out, int *out_n, const unsigned char *in, int n);
    int (*final)(void *context, unsigned char *out, int *out_n);
    int (*control)(void *context, int type, int n, void *p);
    int (*compare)(const void *a, const void *b, size_t n);
} evp;
static int is_there;

struct monarch_mac {
    void *context;
    /* 1: no call has failed since monarch_mac_begin. After a failed call, the MAC must not be used,
     * because a broken library could make all MACs equal */
    int works;
};

static int find(void *library) {
    const struct {
        const char *name;
        void *function;
    } wanted[] = {
        {"EVP_CIPHER_CTX_new", &evp.context_new}, {"EVP_CIPHER_CTX_free", &evp.context_free},
        {"EVP_aes_128_gcm", &evp.aes_128_gcm},    {"EVP_EncryptInit_ex", &evp.init},
        {"EVP_EncryptUpdate", &evp.update},       {"EVP_EncryptFinal_ex", &evp.final},
        {"EVP_CIPHER_CTX_ctrl", &evp.control},    {"CRYPTO_memcmp", &evp.compare},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *function = dlsym(library, wanted[i].name);
        if (!function)
            return 0;
        memcpy(wanted[i].function, &function, sizeof function);
    }
    return 1;
}

/* Loads libcrypto. Prefers a version that is already loaded (usually by Python's hashlib), so that
 * the process does not load a second one. */
static void load(void) {
    const char *names[] = {"libcrypto.so.3", "libcrypto.so.4", "libcrypto.so.1.1"};
    const int modes[] = {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW};
    for (int mode = 0; mode < 2; mode++)
        for (size_t i = 0; !is_there && i < sizeof names / sizeof *names; i++) {
            void *library = dlopen(names[i], modes[mode]);
            is_there = library && find(library);
        }
}

int monarch_mac_is_there(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return is_there;
}

struct monarch_mac *monarch_mac_new(const unsigned char *key) {
    struct monarch_mac *m = monarch_mac_is_there() ? malloc(sizeof *m) : NULL;
    if (!m)
        return NULL;
    m->context = evp.context_new();
    if (m->context && evp.init(m->context, evp.aes_128_gcm(), NULL, key, NULL))
        return m;
    monarch_mac_free(m);
    return NULL;
}

void monarch_mac_free(struct monarch_mac *m) {
    if (m)
        evp.context_free(m->context); /* clears the key, too */
    free(m);
}

void monarch_mac_begin(struct monarch_mac *m, uint64_t number) {
    unsigned char iv[12] = {0};
    memcpy(iv, &number, sizeof number);
    m->works = evp.init(m->context, NULL, NULL, NULL, iv) == 1;
}

void monarch_mac_add(struct monarch_mac *m, const void *bytes, size_t n) {
    int ignored;
    for (const unsigned char *from = bytes; n;) {
        size_t part = n < MOST_AT_ONCE ? n : MOST_AT_ONCE;
        m->works &= evp.update(m->context, NULL, &ignored, from, (int)part) == 1;
        from += part;
        n -= part;
    }
}

int monarch_mac_end(struct monarch_mac *m, unsigned char *mac) {
    unsigned char none[16];
    int ignored;
    memset(mac, 0, MONARCH_MAC_BYTES);
    m->works &= evp.final(m->context, none, &ignored) == 1;
    m->works &= evp.control(m->context, GET_TAG, MONARCH_MAC_BYTES, mac) == 1;
    return m->works;
}

int monarch_seal(struct monarch_mac *m, uint64_t number, const void *frame, size_t n,
                 const struct monarch_digest *digest, unsigned char *seal) {
    monarch_mac_begin(m, number);
    monarch_mac_add(m, frame, n);
    if (digest)
        monarch_mac_add(m, digest->bytes, sizeof digest->bytes);
    return monarch_mac_end(m, seal);
}

int monarch_is_sealed(struct monarch_mac *m, uint64_t number, const void *frame, size_t n,
                      const struct monarch_digest *digest, const unsigned char *seal) {
    unsigned char expected[MONARCH_MAC_BYTES];
    return monarch_seal(m, number, frame, n, digest, expected) &&
           evp.compare(expected, seal, sizeof expected) == 0;
}
