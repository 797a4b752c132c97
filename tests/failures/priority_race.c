/* Closes a descriptor while another thread, which has a lower real-time priority on the same
 * processor, is promoting it.
 *
 *   priority_race FILE
 *
 * Opens FILE, prints "opened", and waits for a line; FILE must have a copy by then. One thread, the
 * reader, reads from FILE, and is held before it puts the copy on the descriptor's number. Another
 * thread, the closer, has a higher priority and closes the number. When the closer has used WORK_NS
 * of processor time and still waits, the program ends the hold. The reader then runs only if the
 * closer gives up the processor. Prints how often the reader was held, and whether the close was
 * done too early.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "hold.h"

#define WORK_NS 500000
/* The kernel ends the program if a thread runs for longer than this time [us] without sleeping. */
#define LIMIT_US 1000000

enum { READER = 1, CLOSER, MAIN };

static int fd, closes_begun, closed, closed_early;
static cpu_set_t processor;
static pthread_t closer;

static void set_priority(int priority) {
    struct sched_param parameters = {.sched_priority = priority};
    if (sched_setscheduler(0, SCHED_FIFO, &parameters) != 0) {
        perror("sched_setscheduler");
        exit(HOLD_UNAVAILABLE);
    }
}

static void settle(int priority) {
    must(sched_setaffinity(0, sizeof processor, &processor) == 0, "sched_setaffinity");
    set_priority(priority);
}

static void reads(void) {
    char data[100];
    settle(READER);
    must(pread(fd, data, sizeof data, 0) == sizeof data, "pread");
}

static void *closes(void *nothing) {
    settle(CLOSER);
    __atomic_store_n(&closes_begun, 1, __ATOMIC_SEQ_CST);
    must(close(fd) == 0, "close");
    __atomic_store_n(&closed, 1, __ATOMIC_SEQ_CST);
    return nothing;
}

static uint64_t worked_ns(clockid_t clock) {
    struct timespec t = {0, 0};
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void closes_meanwhile(void) {
    clockid_t clock;
    must(pthread_create(&closer, NULL, closes, NULL) == 0, "pthread_create");
    must(pthread_getcpuclockid(closer, &clock) == 0, "pthread_getcpuclockid");
    while (!__atomic_load_n(&closes_begun, __ATOMIC_SEQ_CST))
        usleep(1000);
    uint64_t before_ns = worked_ns(clock);
    while (!(closed_early = __atomic_load_n(&closed, __ATOMIC_SEQ_CST)) &&
           worked_ns(clock) - before_ns < WORK_NS)
        usleep(1000);
}

static void use_one_processor(void) {
    cpu_set_t all;
    int number = 0;
    must(sched_getaffinity(0, sizeof all, &all) == 0, "sched_getaffinity");
    while (!CPU_ISSET(number, &all))
        number++;
    CPU_SET(number, &processor);
}

int main(int argc, char **argv) {
    struct rlimit limit = {LIMIT_US, LIMIT_US};
    must(argc == 2, "usage");
    must((fd = open(argv[1], O_RDONLY)) >= 0, "open");
    puts("opened");
    fflush(stdout);
    getchar();
    use_one_processor();
    must(setrlimit(RLIMIT_RTTIME, &limit) == 0, "setrlimit");
    set_priority(MAIN);
    int moments = hold_each(SYS_dup3, -1, reads, closes_meanwhile);
    if (moments)
        pthread_join(closer, NULL);
    printf("%d %d\n", moments, closed_early);
    return 0;
}
