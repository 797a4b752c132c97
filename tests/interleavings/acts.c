#include "acts.h"

#include <string.h>

#include "publish/writer.h"
#include "scheduler.h"
#include "site.h"

const struct monarch_entry *entry_of(unsigned file) {
    return &monarch_entries(site.catalog)[site.ids[file]];
}

void set_word(unsigned file, unsigned state, unsigned copy) {
    uint64_t word = monarch_word(state, 0, TIER, copy);
    monarch_set_words(site.writer, 1, &site.ids[file], &word);
}

int publish_copy(unsigned file, unsigned copy) {
    struct monarch_result r = {
        .id = site.ids[file], .copy = copy, .tier = TIER, .kind = MONARCH_FILL};
    r.copy_ino = inode_of(path_of("tier", name_of_copy(copy)));
    pthread_mutex_lock(&site.writer->lock);
    int is_done = monarch_publish_result(site.writer, site.control, site.clients, &r);
    pthread_mutex_unlock(&site.writer->lock);
    return is_done;
}

unsigned make_present(unsigned file) {
    unsigned copy = make_copy(file, 1, size_of(file));
    set_word(file, MONARCH_FILLING, copy);
    EXPECT(publish_copy(file, copy));
    return copy;
}

void begin_fill(unsigned file, unsigned slot, unsigned copy) {
    struct monarch_fill *f = &site.fills->fill[slot];
    memset(f->done, 0, 64);
    f->failed = f->whole = 0;
    f->unit_bytes = MONARCH_UNIT;
    __atomic_store_n(&site.fills->word[slot], monarch_word(MONARCH_FILLING, 0, TIER, copy),
                     __ATOMIC_SEQ_CST);
    step();
    set_word(file, MONARCH_FILLING, copy);
}

void answer(void) {
    for (unsigned i = 0; i < MONARCH_DEMANDS; i++) {
        __atomic_store_n(&site.clients->demand[i], 0, __ATOMIC_SEQ_CST);
        wake(&site.clients->demand[i], 1, ANY_BIT);
    }
    step();
}

void fill_unit(unsigned file, unsigned slot, unsigned copy, unsigned unit) {
    put_bytes(path_of("tier", name_of_copy(copy)), file, 1, (uint64_t)unit * MONARCH_UNIT,
              MONARCH_UNIT);
    step();
    __atomic_fetch_or(&site.fills->fill[slot].done[0], 1ULL << unit, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&site.fills->units, 1, __ATOMIC_SEQ_CST);
    answer();
}

void end_fill(unsigned slot) {
    __atomic_store_n(&site.fills->word[slot], 0, __ATOMIC_SEQ_CST);
    step();
}
