#include "copy/block_sum.h"

void monarch_block_sum_begin(struct block_sum_stream *s, const unsigned char *content_key) {
    monarch_xxh3_begin(&s->xxh3);
    s->content = content_key ? monarch_mac_new(content_key) : NULL;
    if (s->content)
        monarch_mac_begin(s->content, 0);
}

void monarch_block_sum_add(struct block_sum_stream *s, const void *bytes, size_t n) {
    monarch_xxh3_add(&s->xxh3, bytes, n);
    if (s->content)
        monarch_mac_add(s->content, bytes, n);
}

void monarch_block_sum_end(struct block_sum_stream *s, struct block_sum *out) {
    if (out) {
        out->xxh3 = monarch_xxh3_end(&s->xxh3);
        out->has_digest = s->content && monarch_mac_end(s->content, out->digest.bytes);
    }
    monarch_mac_free(s->content);
    s->content = NULL;
}
