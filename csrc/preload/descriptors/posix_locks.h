/* Closing descriptors of our own without losing the process's POSIX locks. The kernel drops these
 * locks when the process closes any descriptor of the file, and tells nobody. */
#ifndef MONARCH_POSIX_LOCKS_H
#define MONARCH_POSIX_LOCKS_H

#include <stdint.h>

/* Closes a descriptor that the program never had: the process's locks on the file stay. Nobody can
 * get what it has locked for reading; one for writing is taken again at once. `kept` is another
 * descriptor of that file, -1 if none is known. */
void monarch_close_unseen(int fd, int kept);

/* A lock that another thread takes or gives back beside such a closing may be lost, or come back,
 * and one may be refused for what the closing holds. Who changes one waits until none is under way,
 * and changes it again if there was one since, MONARCH_LOCK_ROUNDS times at most:
 *
 *     do
 *         if (!monarch_await_closings(&closings))
 *             there is no lock to be had;
 *     while (change the lock, monarch_has_closed_since(closings));
 */
#define MONARCH_LOCK_ROUNDS 32
int monarch_await_closings(uint32_t *closings); /* 0: one takes too long */
int monarch_has_closed_since(uint32_t closings);

#endif
