/* Message authentication: GMAC (NIST SP 800-38D: AES-128-GCM of associated data alone). OpenSSL's
 * libcrypto computes it, with instructions that every processor of today has. */
#pragma once

#ifndef MONARCH_CDEF
#include <stddef.h>
#include <stdint.h>
#endif

enum { MONARCH_KEY_BYTES = 16, MONARCH_MAC_BYTES = 16 };

/* Whether libcrypto is there, 1.1.0 or later. Everything below needs it. */
int monarch_mac_is_there(void);

/* One key. Used by one thread at a time. */
struct monarch_mac;

struct monarch_mac *monarch_mac_new(const unsigned char *key); /* NULL without memory */
void monarch_mac_free(struct monarch_mac *m);                  /* NULL: nothing */

/* Computes the MAC of all bytes that are added between `begin` and `end`. A number must be used
 * only once with each key: two MACs of one number that somebody sees give the key away. */
void monarch_mac_begin(struct monarch_mac *m, uint64_t number);
void monarch_mac_add(struct monarch_mac *m, const void *bytes, size_t n);
int monarch_mac_end(struct monarch_mac *m, unsigned char *mac); /* 0: there is none */

/* A digest of file content is such a MAC under a key of the whole session, always with number 0. No
 * digest is ever sent: for somebody who sees none, it is a universal hash, of which nobody can find
 * two contents with one digest. The digest goes into the MAC of a frame instead (Wegman and Carter,
 * 1981). */
struct monarch_digest {
    unsigned char bytes[MONARCH_MAC_BYTES];
};

/* Computes the MAC of frame `number` of one direction: of its n bytes, and of the digest of the
 * content before it if the frame vouches for any; else NULL. 0 if the library has failed: the other
 * end refuses such a seal. */
int monarch_seal(struct monarch_mac *m, uint64_t number, const void *frame, size_t n,
                 const struct monarch_digest *digest, unsigned char *seal);
/* Whether the seal is right; checked in a time that does not depend on where two seals differ. */
int monarch_is_sealed(struct monarch_mac *m, uint64_t number, const void *frame, size_t n,
                      const struct monarch_digest *digest, const unsigned char *seal);
