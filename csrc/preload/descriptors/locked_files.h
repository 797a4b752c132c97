/* Remembers the files on which the process has locks, and closes descriptors without losing these
 * locks.
 *
 * When a process closes any descriptor of a file, the kernel silently drops all POSIX locks of the
 * process on this file. So the library must not simply close its own descriptor of such a file. */
#pragma once

#include <stdint.h>

/* monarch_note_locks records that this process has taken a lock on the file, or has requested
 * asynchronous signals about it. monarch_has_locks returns whether this was recorded. Rarely,
 * monarch_has_locks returns 1 for another file too. */
void monarch_note_locks(uint64_t dev, uint64_t ino);
int monarch_has_locks(uint64_t dev, uint64_t ino);

/* Closes a descriptor that the library itself has opened, and preserves the process's locks on the
 * file. Read locks stay in force throughout. A write lock is dropped, and is then immediately taken
 * again, so another process may get the lock in between. kept: another descriptor of the file, or
 * -1 if the caller has none. */
void monarch_close_unseen(int fd, int kept);

/* A closing is a call of monarch_close_unseen. A closing in one thread disturbs lock calls in other
 * threads in three ways. First, the closing may drop a lock that another thread has just taken.
 * Second, the closing may take a lock again that another thread has just released. Third, the
 * closing holds locks for a moment, and another thread's lock call may be refused because of these
 * locks. So a thread that changes a lock first waits until no closing is under way. If a closing
 * has begun during the change, the thread repeats the change, up to MONARCH_LOCK_ROUNDS times:
 *
 *     do
 *         if (!monarch_await_closings(&closings))
 *             no lock can be taken;
 *     while (change the lock, monarch_has_closed_since(closings)); */
#define MONARCH_LOCK_ROUNDS 32
/* Waits until no closing is under way, and stores in *closings how many closings have begun so far.
 * Returns 0 if a closing does not end in time. */
int monarch_await_closings(uint32_t *closings);
int monarch_has_closed_since(uint32_t closings);
