/* Message authentication: GMAC (NIST SP 800-38D: AES-128-GCM of associated data alone). OpenSSL's
 * libcrypto computes it, with instructions that every processor of today has. */
#pragma once

#ifndef MONARCH_CDEF
#include <stddef.h>
#include <stdint.h>
#endif

enum { MONARCH_KEY_BYTES = 16, MONARCH_MAC_BYTES = 16 };

/* Returns whether libcrypto is there, 1.1.0 or later. All functions below need it. */
int monarch_mac_is_there(void);

/* One key, and the MAC that is being computed with it. Only one thread at a time may use it. */
struct monarch_mac;

struct monarch_mac *monarch_mac_new(const unsigned char *key); /* NULL without memory */
void monarch_mac_free(struct monarch_mac *m);                  /* m may be NULL */

/* Computes the MAC of all bytes that are added between `begin` and `end`. A number must be used
 * only once with each key: two MACs with one number give the key away to whoever sees them. */
void monarch_mac_begin(struct monarch_mac *m, uint64_t number);
void monarch_mac_add(struct monarch_mac *m, const void *bytes, size_t n);
int monarch_mac_end(struct monarch_mac *m, unsigned char *mac); /* returns 0 on failure */

/* A digest of file content is a MAC under a key of the whole session, always with number 0. No
 * digest is ever sent. To somebody who sees no digest, it is a universal hash: such an observer
 * cannot find two contents with one digest. What is sent is the MAC of a frame, which covers the
 * digest (Wegman and Carter, 1981). */
struct monarch_digest {
    unsigned char bytes[MONARCH_MAC_BYTES];
};

/* Computes the seal of frame `number` of one direction: the MAC of its n bytes and of `digest`,
 * which is the digest of the content that the frame vouches for, or NULL. Returns 1; or 0 if the
 * library has failed: the other end refuses such a seal. */
int monarch_seal(struct monarch_mac *m, uint64_t number, const void *frame, size_t n,
                 const struct monarch_digest *digest, unsigned char *seal);
/* Returns whether the seal is right. The check takes the same time wherever the seal is wrong. */
int monarch_is_sealed(struct monarch_mac *m, uint64_t number, const void *frame, size_t n,
                      const struct monarch_digest *digest, const unsigned char *seal);
