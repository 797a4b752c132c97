/* The daemon's engine with its own threads, under the scheduler, and the loop that Python has. */
#ifndef DAEMON_H
#define DAEMON_H

#include "native.h"
#include "site.h"

/* --- what its code calls: behind_daemon.c -------------------------------------------------------
 *
 * No call of the daemon's goes through the library, and each of those below is a step. The daemon
 * closes, and reads by, no descriptor that is not its own; and what a program has handed over it
 * closes under no lock, because that may ask the source. */

/* Of descriptors from programs: so many are the daemon's now. */
unsigned handed_descriptors(void);
/* Those of its own that it has not closed. */
unsigned open_daemon_descriptors(void);
/* What follows an open of a file of the source by the daemon; NULL: nothing. */
extern void (*when_source_is_opened)(const char *name);
unsigned source_opens(void);
/* The daemon never has more descriptors from programs. */
extern unsigned most_handed;
/* getrlimit(RLIMIT_NOFILE). */
extern uint64_t most_descriptors;

/* --- the daemon: daemon.c -----------------------------------------------------------------------
 */

/* With one thread that copies, and those that take and keep descriptors. Nothing is granted yet. */
void start_daemon(void);
/* One iteration of the loop: takes the results, orders what programs want, grants this much room,
 * of which policy has more, and rests until it is rung, or so long. */
void run_iteration(uint64_t granted_bytes, uint32_t rest_ns);
/* An order to fill the file that nobody waits for. */
void order_ahead(unsigned file);
/* Turns until every file that programs want has its copy. Then the engine ends, its descriptors are
 * closed, and no claim is left that somebody could wait for. */
void end_daemon(uint64_t granted_bytes, uint32_t rest_ns);

#endif
