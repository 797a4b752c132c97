/* Message authentication with GMAC (NIST SP 800-38D), which is AES-128-GCM of associated data
 * alone. OpenSSL's libcrypto computes it fast, with instructions that all current processors
 * have. */
#pragma once

#ifndef MONARCH_CDEF
#include <stddef.h>
#include <stdint.h>
#endif

enum { MONARCH_KEY_BYTES = 16, MONARCH_MAC_BYTES = 16 };

/* Returns whether libcrypto is installed, in version 1.1.0 or later. All functions below need
 * it. */
int monarch_mac_is_there(void);

/* A key, and the MAC that is being computed with the key. Only one thread at a time may use this
 * structure. */
struct monarch_mac;

/* Returns NULL if memory is exhausted, or if libcrypto is not installed. */
struct monarch_mac *monarch_mac_new(const unsigned char *key);
void monarch_mac_free(struct monarch_mac *m); /* m may be NULL */

/* These functions compute the MAC of all bytes that are added between monarch_mac_begin and
 * monarch_mac_end. Use each number only once with a key: somebody who sees two MACs with the same
 * number and key can compute the key. */
void monarch_mac_begin(struct monarch_mac *m, uint64_t number);
void monarch_mac_add(struct monarch_mac *m, const void *bytes, size_t n);
int monarch_mac_end(struct monarch_mac *m, unsigned char *mac); /* returns 0 on failure */

/* A digest of file content: a MAC with a key that all nodes of the session share. Its number (the
 * argument of monarch_mac_begin) is always 0. Here this is safe, because no digest is ever sent.
 * Only the MAC of a frame is sent, which is computed from the digest and other bytes. So the digest
 * acts as a universal hash (Wegman and Carter, 1981): somebody who sees no digest cannot find two
 * contents with the same digest. */
struct monarch_digest {
    unsigned char bytes[MONARCH_MAC_BYTES];
};

/* Computes the seal of a frame or request: the MAC of its `n` bytes and of `digest`. number: how
 * many frames or requests were sent in this direction before. digest: the digest of the content
 * that the frame authenticates; NULL: none. Returns 0 if libcrypto has failed, so that the seal is
 * wrong; else 1. */
int monarch_seal(struct monarch_mac *m, uint64_t number, const void *frame, size_t n,
                 const struct monarch_digest *digest, unsigned char *seal);
/* Returns whether the seal is right. The comparison always takes the same time. Otherwise, the time
 * would tell an attacker which bytes of a wrong seal are right. */
int monarch_is_sealed(struct monarch_mac *m, uint64_t number, const void *frame, size_t n,
                      const struct monarch_digest *digest, const unsigned char *seal);
