/* Publishes copies: sets the entries' words, and updates the index that maps a copy's inode to its
 * entry. */
#include "publish/writer.h"

/* Sets the entry's word. Also updates the guess of the word (monarch_guess_of) in the entry's slot
 * of the index by path. Either may be stored first, because readers compare the guess with the
 * word. */
void monarch_set_word(struct monarch_catalog *c, struct monarch_entry *e, uint64_t id,
                      uint64_t word) {
    uint64_t old = e->word;
    int was_guessed = MONARCH_WORD_STATE(old) == MONARCH_PRESENT;
    __atomic_store_n(&e->word, word, __ATOMIC_SEQ_CST);
    /* If the entry loses its copy, it also loses the copy's inode number. Otherwise, a move to a
     * larger catalog could index this number under the entry's next copy. A process that has the
     * removed copy open still finds the entry. It uses the copy's slot in the present index, or the
     * copy's stamp. */
    if (MONARCH_WORD_COPY(old) && !MONARCH_WORD_COPY(word))
        __atomic_store_n(&e->copy_ino, 0, __ATOMIC_SEQ_CST);
    if (!was_guessed && MONARCH_WORD_STATE(word) != MONARCH_PRESENT)
        return;
    uint64_t i = monarch_first_path_slot(e->hash, c->slots), place;
    while ((place = monarch_path_slot(c, i)->place) && monarch_slot_id(place) != id)
        i = monarch_next_slot(c, i);
    if (place)
        __atomic_store_n(&monarch_path_slot(c, i)->copy, monarch_guess_of(e->hash, word),
                         __ATOMIC_SEQ_CST);
}

void monarch_set_words(struct monarch_writer *w, uint64_t n, const uint64_t *ids,
                       const uint64_t *words) {
    pthread_mutex_lock(&w->lock);
    struct monarch_entry *table = monarch_table(w->catalog);
    for (uint64_t i = 0; i < n; i++)
        monarch_set_word(w->catalog, &table[ids[i]], ids[i], words[i]);
    pthread_mutex_unlock(&w->lock);
}

/* Stores the entry's number in a free slot of the index by copy. Upper 32 bits of the slot: the
 * lower 32 bits of the hash. Lower 32 bits: the entry's number + 1. */
void monarch_put_copy(struct monarch_catalog *c, uint64_t ino, unsigned tier, uint64_t id) {
    uint64_t *slots = (uint64_t *)((char *)c + c->copies_at);
    uint64_t hash = monarch_mix(ino + tier), i = monarch_first_slot(hash, c->slots);
    while (slots[i])
        i = monarch_next_slot(c, i);
    __atomic_store_n(&slots[i], hash << 32 | (id + 1), __ATOMIC_SEQ_CST);
    c->copies_used++;
}

static int is_stamped(const struct monarch_catalog *c, uint64_t word, int is_made) {
    unsigned tier = MONARCH_WORD_TIER(word);
    return tier + 1 == c->stamped || (is_made && (c->evicting >> tier & 1));
}

static int publish(struct monarch_catalog *c, uint64_t n, const uint64_t *ids,
                   const uint64_t *words, const uint64_t *copy_inos, const uint64_t *sums,
                   const uint8_t *made) {
    struct monarch_entry *table = monarch_table(c);
    uint64_t places = 0;
    for (uint64_t i = 0; i < n; i++)
        places += !is_stamped(c, words[i], made && made[i]);
    if (places && c->copies_used + places > MONARCH_FULL(c->slots))
        return -1;
    for (uint64_t i = 0; i < n; i++) {
        struct monarch_entry *e = &table[ids[i]];
        unsigned tier = MONARCH_WORD_TIER(words[i]);
        /* Another entry may still have this inode number. The entry of a removed copy keeps the
         * number until the daemon has processed the removal. The file system reuses the number only
         * after all descriptors of the removed copy were closed. So no reader needs the number in
         * the other entry, and it is deleted there. Otherwise, look-ups of the new copy could find
         * the other entry. */
        int has_stamp = is_stamped(c, words[i], made && made[i]);
        int64_t old = has_stamp ? -1 : monarch_find_copy(c, tier, copy_inos[i]);
        if (old >= 0 && (uint64_t)old != ids[i])
            __atomic_store_n(&table[old].copy_ino, 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&e->sum, sums[i], __ATOMIC_RELEASE);
        __atomic_store_n(&e->copy_ino, copy_inos[i], __ATOMIC_SEQ_CST);
        if (!has_stamp)
            monarch_put_copy(c, copy_inos[i], tier, ids[i]);
        monarch_set_word(c, e, ids[i], words[i]);
    }
    return 0;
}

int monarch_publish(struct monarch_writer *w, uint64_t n, const uint64_t *ids,
                    const uint64_t *words, const uint64_t *copy_inos, const uint64_t *sums,
                    const uint8_t *made) {
    pthread_mutex_lock(&w->lock);
    int r = publish(w->catalog, n, ids, words, copy_inos, sums, made);
    pthread_mutex_unlock(&w->lock);
    return r;
}

void monarch_lose_tier(struct monarch_writer *w, unsigned tier) {
    pthread_mutex_lock(&w->lock);
    w->lost |= 1U << tier;
    pthread_mutex_unlock(&w->lock);
}

/* A client may mark the file as changed just after this function has read the changed filter. The
 * published copy is then stale. No program reads it, because every open checks the filter itself.
 * But Python must remove it, and may have processed the mark before there was a copy to remove. So
 * Python checks the filter again when it processes the result. */
int monarch_publish_result(struct monarch_writer *w, const struct monarch_control *k,
                           const struct monarch_clients *m, const struct monarch_result *r) {
    uint64_t present = monarch_word(MONARCH_PRESENT, 0, r->tier, r->copy);
    uint8_t is_made = r->kind == MONARCH_FILL;
    const struct monarch_entry *e = &monarch_entries(w->catalog)[r->id];
    return !(w->lost >> r->tier & 1) &&
           e->word == monarch_word(MONARCH_FILLING, 0, r->tier, r->copy) &&
           !monarch_is_changed(m, k->source[e->source].dev, e->ino) &&
           publish(w->catalog, 1, &r->id, &present, &r->copy_ino, &r->sum, &is_made) == 0;
}
