/* Runs work that needs a descriptor in a process that may have none left. */
#pragma once

#define MONARCH_APART_BYTES 128

/* Calls work(data) in a thread that shares everything with us but the table of descriptors: its own
 * table is empty, whatever the process has open. `data` (`n` bytes, MONARCH_APART_BYTES at most) is
 * copied to the thread and back. `work` may only make system calls. Returns whether the work was
 * done within a second. */
int monarch_run_apart(void (*work)(void *data), void *data, unsigned long n);
