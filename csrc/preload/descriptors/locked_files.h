/* Notes the files on which the process has locks, and closes the library's own descriptors of these
 * files without losing the locks.
 *
 * The kernel silently drops a process's POSIX locks on a file when the process closes any
 * descriptor of that file. */
#pragma once

#include <stdint.h>

/* monarch_note_locks notes that this process has taken a lock on the file, or has requested
 * asynchronous signals about it. monarch_has_locks returns whether that was noted; it also returns
 * 1 for a few other files. */
void monarch_note_locks(uint64_t dev, uint64_t ino);
int monarch_has_locks(uint64_t dev, uint64_t ino);

/* Closes a descriptor that the library has opened and the program does not know, and preserves the
 * process's locks on the file. Read locks stay in force throughout. A write lock is dropped, and is
 * then immediately taken again, so another process may get the lock in between. kept: another
 * descriptor of the file, or -1 if none is known. */
void monarch_close_unseen(int fd, int kept);

/* A closing is a call of monarch_close_unseen. A closing that is under way disturbs lock calls of
 * other threads in three ways. A lock that a thread takes may be lost. A lock that a thread
 * releases may be taken again by the closing. A lock may be refused because the closing holds it.
 * So a thread that changes a lock first waits until no closing is under way. If a closing has begun
 * during the change, the thread repeats the change, up to MONARCH_LOCK_ROUNDS times:
 *
 *     do
 *         if (!monarch_await_closings(&closings))
 *             no lock can be taken;
 *     while (change the lock, monarch_has_closed_since(closings)); */
#define MONARCH_LOCK_ROUNDS 32
/* returns 0 if a call of monarch_close_unseen has not ended in time */
int monarch_await_closings(uint32_t *closings);
int monarch_has_closed_since(uint32_t closings);
