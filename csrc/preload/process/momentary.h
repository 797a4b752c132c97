/* Guards descriptors that the library opens for one call: the child of a fork must not keep one.
 *
 * A thread that is about to open such a momentary descriptor waits while another thread forks, and
 * a fork waits until momentary descriptors are closed. Neither wait is long. */
#pragma once

/* monarch_momentary_begin is called before a momentary descriptor is opened, and waits while
 * another thread forks. monarch_momentary_end is called after the descriptor was closed. */
void monarch_momentary_begin(void);
void monarch_momentary_end(void);

/* The parent calls monarch_momentary_before_fork, which waits until no momentary descriptor is
 * open, and monarch_momentary_after_fork after the fork. */
void monarch_momentary_before_fork(void);
void monarch_momentary_after_fork(void);
/* Called in the child of a fork: forgets what the parent's other threads had open, because these
 * threads do not exist in the child. */
void monarch_momentary_forget(void);
