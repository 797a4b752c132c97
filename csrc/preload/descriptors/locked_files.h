/* Remembers the files on which the process has locks, and closes descriptors without losing these
 * locks.
 *
 * If a process closes any descriptor of a file, the kernel silently drops all POSIX locks of the
 * process on this file. So the library must not simply close its own descriptor of a locked
 * file. */
#pragma once

#include <stdint.h>

/* monarch_note_locks records that this process has taken a lock on the file, or has requested
 * asynchronous signals about it. monarch_has_locks returns whether this was recorded. It may also
 * return 1 for another file, which only costs time. */
void monarch_note_locks(uint64_t dev, uint64_t ino);
int monarch_has_locks(uint64_t dev, uint64_t ino);

/* Closes a descriptor that the library itself has opened, and preserves the process's locks on the
 * file. Read locks stay in force. A write lock is dropped and at once taken again, so another
 * process may get it in between. kept: another descriptor of the file, or -1 if the caller has
 * none. */
void monarch_close_unseen(int fd, int kept);

/* A closing is a call of monarch_close_unseen. It disturbs lock calls of other threads in three
 * ways. It may drop a lock that another thread has just taken. It may take a lock again that
 * another thread has just released. It holds locks for a moment, and the kernel may refuse another
 * thread's lock because of them.
 *
 * So a thread that changes a lock first waits until no closing is under way. If a closing has begun
 * during the change, the thread repeats the change, up to MONARCH_LOCK_ROUNDS times:
 *
 *     do
 *         if (!monarch_await_closings(&closings))
 *             no lock can be taken;
 *     while (change the lock, monarch_has_closed_since(closings)); */
#define MONARCH_LOCK_ROUNDS 32
/* Waits until no closing is under way. Returns 0 if a closing does not end in time. Stores in
 * *closings how many closings have begun so far. */
int monarch_await_closings(uint32_t *closings);
int monarch_has_closed_since(uint32_t closings);
