/* Message authentication: GMAC (NIST SP 800-38D: AES-128-GCM of associated data alone). libcrypto
 * of OpenSSL computes it, on every processor of today with instructions of its own. */
#ifndef MONARCH_PEER_MAC_H
#define MONARCH_PEER_MAC_H

#ifndef MONARCH_CDEF
#include <stddef.h>
#include <stdint.h>
#endif

enum { MONARCH_KEY_BYTES = 16, MONARCH_MAC_BYTES = 16 };

/* Whether libcrypto is there, 1.1.0 or later. Everything below needs it. */
int monarch_mac_is_there(void);

/* The digest (below) of bytes under a session's content key; 0, or -1 without memory or libcrypto.
 */
int monarch_digest_of(const unsigned char *content_key, const char *bytes, uint64_t n,
                      unsigned char *digest);

/* One key. Used by one thread at a time. */
struct monarch_mac;

struct monarch_mac *monarch_mac_new(const unsigned char *key); /* NULL without memory */
void monarch_mac_free(struct monarch_mac *m);                  /* NULL: nothing */

/* The MAC of all bytes that are added between `begin` and `end`. A number must be used once only
 * with each key: two MACs of one number that somebody sees give the key away. */
void monarch_mac_begin(struct monarch_mac *m, uint64_t number);
void monarch_mac_add(struct monarch_mac *m, const void *bytes, size_t n);
int monarch_mac_end(struct monarch_mac *m, unsigned char *mac); /* 0: there is none */

/* A digest of file content is such a MAC under a key of the whole session, always with number 0. No
 * digest is ever sent: to somebody who sees none, it is a universal hash, for which he can find no
 * two contents of one digest. It goes into the MAC of a frame instead (Wegman and Carter, 1981). */
struct monarch_digest {
    unsigned char bytes[MONARCH_MAC_BYTES];
};

/* The MAC of frame `number` of one direction: its n bytes, and the digest of the content before it
 * if it vouches for any; else NULL. */
void monarch_seal(struct monarch_mac *m, uint64_t number, const void *frame, size_t n,
                  const struct monarch_digest *digest, unsigned char *seal);
/* In a time that does not depend on where they differ. */
int monarch_is_sealed(struct monarch_mac *m, uint64_t number, const void *frame, size_t n,
                      const struct monarch_digest *digest, const unsigned char *seal);

#endif
