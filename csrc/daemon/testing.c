/* What the tests reach through Python. */
#include "native.h"
#include "xxh3.h"

uint64_t monarch_xxh3_of(const char *data, uint64_t len) { return monarch_xxh3(data, len); }

uint64_t monarch_xxh3_in_pieces(const char *data, uint64_t len, uint64_t piece) {
    struct xxh3_stream s;
    monarch_xxh3_begin(&s);
    for (uint64_t at = 0; at < len; at += piece)
        monarch_xxh3_add(&s, data + at, len - at < piece ? len - at : piece);
    return monarch_xxh3_end(&s);
}

uint64_t monarch_stamp_of(uint64_t salt, uint64_t id) { return monarch_stamp(salt, id); }
