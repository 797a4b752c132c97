/* Measures how long this process's own opens and reads at the sources take. */
#pragma once

#include <stdint.h>

/* Whether the sources have returned most of this process's last files as soon as the page cache
 * does (at hand), or later than that, but as soon as a local disk does (near). Both are 0 now and
 * then nevertheless, so that reads go on being timed. */
int monarch_source_is_at_hand(void);
int monarch_source_is_near(void);

/* Called when an open, or a read, of a source's file has ended that began at since_ns
 * (monarch_now_ns). */
void monarch_note_source_open(uint64_t since_ns);
void monarch_note_source_read(uint64_t since_ns);

/* The mean time of an open and a read together [ns]; 0: nothing is known yet. */
uint64_t monarch_latency_ns(void);
