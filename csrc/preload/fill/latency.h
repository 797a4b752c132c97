/* How long this process's own opens and reads at the sources take. */
#ifndef MONARCH_LATENCY_H
#define MONARCH_LATENCY_H

#include <stdint.h>

/* Whether the sources have given this process most of its last files as soon as the page cache
 * does; and as soon as a local disk does, but later than that. Now and then they are 0
 * nevertheless, so that somebody times the reads. */
int monarch_source_is_at_hand(void);
int monarch_source_is_near(void);

/* An open, or a read, of a source's file that began at since_ns (sys_now_ns) has ended. */
void monarch_note_source_open(uint64_t since_ns);
void monarch_note_source_read(uint64_t since_ns);

/* Of an open and a read together, their mean [ns]; 0: nothing is known yet. */
uint64_t monarch_latency_ns(void);

#endif
