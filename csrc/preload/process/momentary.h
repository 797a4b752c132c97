/* Keeps forked children from inheriting the descriptors that the library opens for a single call.
 *
 * A descriptor that is open only during one call is called momentary. Before a thread opens a
 * momentary descriptor, it waits while another thread forks. Before a thread forks, it waits until
 * all momentary descriptors are closed. Both waits have a short limit. */
#pragma once

/* Call monarch_momentary_begin before a momentary descriptor is opened. It waits while another
 * thread forks. Call monarch_momentary_end after the descriptor was closed. */
void monarch_momentary_begin(void);
void monarch_momentary_end(void);

/* Call these in the parent, before and after a fork. monarch_momentary_before_fork waits until no
 * momentary descriptor is open. */
void monarch_momentary_before_fork(void);
void monarch_momentary_after_fork(void);
/* Call this in the child after a fork. Forgets the momentary descriptors of the parent's other
 * threads, because these threads do not exist in the child. */
void monarch_momentary_forget(void);
