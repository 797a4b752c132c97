/* POSIX locks end when their process closes any descriptor of the file, and say so to nobody. */
#ifndef MONARCH_POSIX_LOCKS_H
#define MONARCH_POSIX_LOCKS_H

/* Closes a descriptor that the program never had: the process's locks on the file stay. Nobody can
 * get what it has locked for reading; one for writing is taken again at once. `kept` is another
 * descriptor of that file, -1 if none is known. */
void monarch_close_unseen(int fd, int kept);

#endif
