/* Runs a scan for which only some of the threads can be started.
 *
 *   scan_threads DIRECTORY THREADS STARTED
 *
 * THREADS: the number of threads that the scan asks for;  STARTED: how many of them can be started
 *
 * Prints the numbers of entries and errors when the scan has ended. The exit status is 1 if the
 * scan has not ended after about ten seconds. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "native.h"
#include "scanning.h"

static int left;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*begin)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*begin)(void *), void *arg);

/* Replaces pthread_create. The first `left` calls start a thread, and all later calls fail. Like
 * libc's function after a failed clone, a call that fails still sets *thread. Each failing call
 * begins with a pause of 20 ms, in which the threads that were started begin to wait for work. */
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*begin)(void *), void *arg) {
    struct timespec pause = {0, 20000000};
    if (left-- > 0)
        return __real_pthread_create(thread, attributes, begin, arg);
    *thread = 1;
    nanosleep(&pause, NULL);
    return EAGAIN;
}

int main(int argc, char **argv) {
    uint32_t doorbell = 0;
    uint64_t entries = 0;
    int error = 0;
    int root = open(argc == 4 ? argv[1] : "", O_RDONLY | O_DIRECTORY);
    if (root < 0)
        return 2;
    left = atoi(argv[3]);
    struct monarch_scan *s = monarch_scan_start(root, 0, atoi(argv[2]), 0, &doorbell);
    if (!s || !scan_to_end(s, &entries))
        return 1;
    uint64_t errors = monarch_scan_errors(s, &error);
    monarch_scan_stop(s, 60000);
    printf("%llu %llu\n", (unsigned long long)entries, (unsigned long long)errors);
    return 0;
}
