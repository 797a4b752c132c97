/* Keeps forked children from inheriting the descriptors that the library opens for a single call.
 *
 * Such a descriptor is called momentary. A thread that is about to open a momentary descriptor
 * waits while another thread forks. A fork waits until all momentary descriptors are closed. Both
 * waits have a short limit. */
#pragma once

/* Call monarch_momentary_begin before a momentary descriptor is opened; this function waits while
 * another thread forks. Call monarch_momentary_end after the descriptor was closed. */
void monarch_momentary_begin(void);
void monarch_momentary_end(void);

/* The parent calls monarch_momentary_before_fork before a fork; this function waits until no
 * momentary descriptor is open. The parent calls monarch_momentary_after_fork after the fork. */
void monarch_momentary_before_fork(void);
void monarch_momentary_after_fork(void);
/* Call this in the child after a fork. Forgets the momentary descriptors of the parent's other
 * threads, because these threads do not exist in the child. */
void monarch_momentary_forget(void);
