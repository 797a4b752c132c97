/* Runs work that must open a descriptor although the process may have no free descriptor number. */
#pragma once

#define MONARCH_APART_BYTES 128

/* Calls work(data) in a thread that shares everything with the process except the table of
 * descriptors. The thread can open a descriptor, however many the process has open. `data` (`n`
 * bytes, at most MONARCH_APART_BYTES) is copied to the thread and back. `work` may only make system
 * calls. Returns whether the work was done within a second. */
int monarch_run_apart(void (*work)(void *data), void *data, unsigned long n);
