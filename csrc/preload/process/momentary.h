/* Guards descriptors that the library opens for one call: the child of a fork must not keep one.
 *
 * A thread that opens such a descriptor and a thread that forks wait for each other, neither for
 * long. */
#pragma once

/* Called before such a descriptor is opened, and after it was closed. The first waits while another
 * thread forks. */
void monarch_momentary_begin(void);
void monarch_momentary_end(void);

/* Called in the parent, before and after a fork. The first waits until no such descriptor is
 * open. */
void monarch_momentary_before_fork(void);
void monarch_momentary_after_fork(void);
/* Called in the child of a fork, which has only one of the parent's threads. */
void monarch_momentary_forget(void);
