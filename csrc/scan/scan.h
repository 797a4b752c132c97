/* The scan of a source: its tasks, its threads, and what they share. */
#pragma once

#include <pthread.h>

#include "native.h"
#include "shared/pace.h"

#define BATCHES_AHEAD 8 /* batches that may wait for Python before the threads wait */
/* How long a thread keeps what it has found, and the least time between two rings of Python's
 * doorbell, unless several batches wait [ns]. The time is short because fills wait for these
 * entries. */
#define BATCH_NS 20000000ULL
/* Names in a portion. One thread lists a directory and shares out its names in portions, so that
 * even a flat directory of a million files keeps all threads busy. */
#define PORTION 8
/* Portions that may wait, for each thread but one. Once so many wait, the thread that lists a
 * directory looks at its next names itself. */
#define PORTIONS_AHEAD 16

/* A directory to list (`names` is 0), or a portion of its names to look at. is_first: the scan
 * begins with this directory, so nothing has reported it yet. is_wanted: the task goes before all
 * tasks that are not wanted. `path` is relative to the source's root, and "" for the root
 * itself. */
struct task {
    struct task *next;
    int is_first, is_wanted;
    int is_settled; /* the directory has not changed since the scan's `since_ns` */
    uint32_t names;
    uint32_t place; /* of the portion's first name in the directory */
    size_t text;    /* length of `path` with its NUL, and of the names behind it */
    char path[];    /* the directory's path; then inode and name of each file */
};

/* Tasks, oldest first. `portions` counts those that are portions. */
struct queue {
    struct task *first, *last;
    int portions;
};

#define ALL_NAMES INT64_MAX

/* A directory that is to be scanned before others. The last WANTS of them are kept, because the
 * walk may reach their directories only later. */
#define WANTS 16
struct want {
    int is_set, is_deep;
    char directory[MONARCH_PATH_MAX];
};

struct monarch_scan {
    pthread_mutex_t lock;
    pthread_cond_t more_work, may_go_on, room;
    struct queue wanted, wanted_portions;
    struct queue portions; /* oldest first, so that the catalog's order is nearly the source's */
    struct task *todo;     /* directories, newest first: the tree is walked depth first */
    struct monarch_batch *first, *last;
    struct want wants[WANTS];
    unsigned next_want;
    int batches, busy, threads, stopping, root, error;
    int is_deep, is_whole; /* is_deep: walks directories below; is_whole: scans all of the source */
    unsigned source;
    uint64_t dev, errors;
    uint64_t up_ino; /* atomic: the inode that the root's listing gives to ".."; 0 if unknown */
    struct monarch_pace pace;
    int is_all_wanted;
    /* How many names may still be looked at: [1] in wanted directories, [0] in others
     * (monarch_scan_allow). */
    int64_t may_look[2];
    struct monarch_writer *writer; /* writer of the catalog whose files need no look, or NULL */
    int64_t since_ns;              /* a time when the catalog had no files [CLOCK_REALTIME] */
    const struct monarch_clients *clients; /* says what clients read just now, or NULL */
    uint32_t *doorbell;
    uint64_t rung_ns; /* when the bell was last rung for a batch */
    pthread_t thread[];
};

/* --- batch.c: what is found ---------------------------------------------------------------------
 */

/* Counts a directory or file that could not be looked at. Takes the lock. */
void monarch_count_scan_error(struct monarch_scan *s, int error);
/* Adds an entry to the thread's own batch, which it hands over first if it is full. *batch is NULL
 * at first. */
void monarch_report(struct monarch_scan *s, struct monarch_batch **batch, struct monarch_entry *e,
                    const char *path, const char *target);
/* Hands the thread's batch over to Python (monarch_scan_take); *batch is empty then, or NULL. May
 * wait until Python has taken some batches. */
void monarch_hand_over_batch(struct monarch_scan *s, struct monarch_batch **batch);
/* Calls monarch_hand_over_batch if the first entry of the batch was found more than BATCH_NS
 * ago. */
void monarch_hand_over_in_time(struct monarch_scan *s, struct monarch_batch **batch);

/* --- tasks.c: what is still to be done ----------------------------------------------------------
 */

/* Makes a task for a directory, with `room` more bytes for names. Returns NULL without memory,
 * which counts as an error of the scan. */
struct task *monarch_new_task(struct monarch_scan *s, const char *path, size_t room);
/* Queues a task; NULL is ignored. */
void monarch_add_task(struct monarch_scan *s, struct task *t);
/* Waits for the next task that may begin, and returns it; NULL when the scan has ended. */
struct task *monarch_next_task(struct monarch_scan *s, struct monarch_batch **batch);
/* Returns whether so many portions wait that the listing thread is to look at `t` itself. Takes the
 * lock. */
int monarch_others_have_enough(struct monarch_scan *s, const struct task *t);
/* monarch_may_look returns whether the names of a portion may be looked at now. monarch_count_looks
 * subtracts the names from those that may still be looked at. The caller holds the lock. */
int monarch_may_look(struct monarch_scan *s, struct task *t);
void monarch_count_looks(struct monarch_scan *s, const struct task *t);
/* Takes the first task of a queue that is not empty. The caller holds the lock. */
struct task *monarch_take_first_task(struct queue *q);
/* monarch_has_tasks returns whether any task is left. monarch_take_task takes the first task that
 * may begin; there must be one. The caller holds the lock, or no thread is left. */
int monarch_has_tasks(const struct monarch_scan *s);
struct task *monarch_take_task(struct monarch_scan *s);
/* Makes all threads check again whether they may go on. The caller holds the lock. */
void monarch_wake_scan(struct monarch_scan *s);

/* --- walk.c: listing directories, and looking at files ------------------------------------------
 */

void monarch_look_at_names(struct monarch_scan *s, struct monarch_batch **batch, struct task *t);
void monarch_walk_directory(struct monarch_scan *s, struct monarch_batch **batch, struct task *t);
/* Returns how many names this thread has looked at. */
uint64_t monarch_looks(void);
