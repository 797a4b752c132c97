/* Closes descriptors of our own without losing the process's POSIX locks.
 *
 * The kernel drops these locks silently when the process closes any descriptor of the file. */
#pragma once

#include <stdint.h>

/* monarch_note_locks notes that this process has taken a lock on the file, or has asked for
 * asynchronous signals about it. monarch_has_locks tells whether that was noted. */
void monarch_note_locks(uint64_t dev, uint64_t ino);
int monarch_has_locks(uint64_t dev, uint64_t ino);

/* Closes a descriptor that the program never had, and keeps the process's locks on the file. Read
 * locks are held all the while; a write lock is dropped and taken again at once, and another
 * process may take it in between. `kept` is another descriptor of the file, or -1 if none is
 * known. */
void monarch_close_unseen(int fd, int kept);

/* While such a closing is under way, a lock that another thread takes may be lost, a lock that it
 * gives back may return, and a lock may be refused because the closing holds it. A thread that
 * changes a lock first waits until no closing is under way. It repeats the change if there was a
 * closing since, MONARCH_LOCK_ROUNDS times at most:
 *
 *     do
 *         if (!monarch_await_closings(&closings))
 *             there is no lock to be had;
 *     while (change the lock, monarch_has_closed_since(closings)); */
#define MONARCH_LOCK_ROUNDS 32
int monarch_await_closings(uint32_t *closings); /* returns 0 if a closing takes too long */
int monarch_has_closed_since(uint32_t closings);
