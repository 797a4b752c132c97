/* The daemon's engine, whose threads run under the scheduler, and a C version of the daemon's
 * Python loop. */
#ifndef DAEMON_H
#define DAEMON_H

#include "native.h"
#include "site.h"

/* --- the engine's calls: behind_daemon.c --------------------------------------------------------
 *
 * No call of the engine goes through the preload library, and each call that other threads can
 * notice is a step. The calls check that the engine uses and closes only its own descriptors. They
 * also check that the engine holds no lock while it closes a descriptor from a program, because
 * this close may have to wait for the source. */

/* The number of open descriptors that the daemon has received from programs. */
unsigned handed_descriptors(void);
/* The number of all open descriptors of the daemon, including those from programs. */
unsigned open_daemon_descriptors(void);
/* Called with the file's name whenever the daemon opens a file of the source; may be NULL. */
extern void (*when_source_is_opened)(const char *name);
unsigned source_opens(void);
/* The largest number of descriptors from programs that the daemon may have at a time. If it has
 * more, the run fails. */
extern unsigned most_handed;
/* The limit that getrlimit(RLIMIT_NOFILE) returns to the daemon. */
extern uint64_t most_descriptors;

/* --- the daemon: daemon.c -----------------------------------------------------------------------
 */

/* Starts the engine: one thread that copies, threads that receive descriptors, and a thread for the
 * table of descriptors that wait for an order. The engine has no room in the tier until
 * run_iteration grants room. */
void start_daemon(void);
/* Runs one iteration of the loop. It takes the results, orders the fills that programs want, and
 * grants the engine `granted_bytes`, which are only a part of the tier's room. Then it rests until
 * it is woken, for at most `rest_ns`. */
void run_iteration(uint64_t granted_bytes, uint32_t rest_ns);
/* Orders a fill of a file for which no reader waits. */
void order_ahead(unsigned file);
/* Runs iterations of the loop until programs want no more files and the daemon has closed every
 * descriptor that was handed over. Then stops the engine, which must have closed its own
 * descriptors too. */
void end_daemon(uint64_t granted_bytes, uint32_t rest_ns);

#endif
