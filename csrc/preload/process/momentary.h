/* Descriptors that the library has open for the time of one call, beside the program's: the child
 * of a fork must not keep one. A thread that opens one and a thread that forks wait for each other,
 * and neither for long.
 */
#ifndef MONARCH_MOMENTARY_H
#define MONARCH_MOMENTARY_H

/* Around such a descriptor's life. The first waits while another thread forks. */
void monarch_momentary_begin(void);
void monarch_momentary_end(void);

/* Around a fork in the parent. The first waits until no such descriptor is open. */
void monarch_momentary_before_fork(void);
void monarch_momentary_after_fork(void);
/* In the child of a fork, which has the parent's thread alone. */
void monarch_momentary_forget(void);

#endif
