/* POSIX locks end when their process closes any descriptor of the file, and say so to nobody. */
#ifndef MONARCH_POSIX_LOCKS_H
#define MONARCH_POSIX_LOCKS_H

#include <stdint.h>

/* Closes a descriptor that the program never had: the process's locks on the file stay. Nobody can
 * get what it has locked for reading; one for writing is taken again at once. `kept` is another
 * descriptor of that file, -1 if none is known. */
void monarch_close_unseen(int fd, int kept);

/* A lock that another thread takes or gives back beside such a closing may be lost, or come back.
 * Who changes one waits until none is under way, and changes it again if there was one since:
 *
 *     do
 *         closings = monarch_closings();
 *     while (change the lock and succeed && monarch_has_closed_since(closings));
 */
uint32_t monarch_closings(void);
int monarch_has_closed_since(uint32_t closings);

#endif
