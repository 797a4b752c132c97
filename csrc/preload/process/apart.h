/* Runs a function that must open a descriptor, even if the process has no free descriptor
 * number. */
#pragma once

#define MONARCH_APART_BYTES 128

/* Calls work(data) in a thread that shares everything with the process except the table of
 * descriptors. So the thread can open a descriptor even if the process's table is full. `work`
 * must make only raw system calls. `work` gets a copy of `data`. After the work, this copy is
 * copied back. n: size of `data`, at most MONARCH_APART_BYTES. Returns whether `work` has ended
 * within a second. */
int monarch_run_apart(void (*work)(void *data), void *data, unsigned long n);
