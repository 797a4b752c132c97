/* The scan of a source: its tasks, its threads, and what they share. */
#pragma once

#include <pthread.h>

#include "native.h"
#include "shared/pace.h"

#define BATCHES_AHEAD 8 /* batches that wait for Python before the threads wait for it */
/* A thread hands over what it has found after this time, and Python is rung at most this often:
 * fills wait for these entries [ns]. */
#define BATCH_NS 20000000ULL
/* How many names a thread looks at before it takes more. A directory is listed by one thread, and
 * its names are shared out in portions: a flat directory of a million files keeps all threads
 * busy. */
#define PORTION 8
/* Portions that may wait, for each thread; past that, the listing thread looks at names, too. */
#define PORTIONS_AHEAD 16

/* A directory to list (`names` is 0), or a portion of its names to look at. is_first: the directory
 * itself was not reported yet; is_wanted: goes before all tasks that are not wanted. */
struct task {
    struct task *next;
    int is_first, is_wanted;
    int is_settled; /* of names: their directory has not changed since `since_ns` */
    uint32_t names;
    uint32_t place; /* of the first of these names in the directory */
    size_t text;    /* length of `path` with its NUL, and of the names behind it */
    char path[];    /* of the directory, relative; "" is the root. Then inode and name of each */
};

/* Tasks, oldest first. portions: how many of them are portions. */
struct queue {
    struct task *first, *last;
    int portions;
};

#define ALL_NAMES INT64_MAX

/* A directory that comes before others. The latest wants are kept: the walk may not have met their
 * directories yet. */
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
    struct monarch_pace pace;
    int is_all_wanted;
    /* How many names may be looked at: [1] wanted, [0] others (monarch_scan_allow). */
    int64_t may_look[2];
    struct monarch_writer *writer; /* of the catalog that is filled, or NULL */
    int64_t since_ns;              /* a time when the catalog had no files [CLOCK_REALTIME] */
    const struct monarch_clients *clients; /* clients that read the source meanwhile, or NULL */
    uint32_t *doorbell;
    uint64_t rung_ns; /* when the bell was last rung for a batch */
    pthread_t thread[];
};

/* --- batch.c: what is found ---------------------------------------------------------------------
 */

/* Counts a directory or file that could not be looked at. Takes the lock. */
void monarch_count_scan_error(struct monarch_scan *s, int error);
/* Adds a file, or a directory, to what the thread has found. *batch is the thread's own, NULL at
 * first. */
void monarch_report(struct monarch_scan *s, struct monarch_batch **batch, struct monarch_entry *e,
                    const char *path, const char *target);
/* Hands what the thread has found to the scan; *batch is empty then, or NULL. May wait until Python
 * has taken some batches. */
void monarch_hand_over_batch(struct monarch_scan *s, struct monarch_batch **batch);
/* As monarch_hand_over_batch, if the first entry of the batch was found more than BATCH_NS ago;
 * else does nothing. */
void monarch_hand_over_in_time(struct monarch_scan *s, struct monarch_batch **batch);

/* --- tasks.c: what is still to be done ----------------------------------------------------------
 */

/* A task for a directory, with `room` more bytes for names. NULL without memory: that counts as an
 * error of the scan. */
struct task *monarch_new_task(struct monarch_scan *s, const char *path, size_t room);
/* Queues a task; NULL is ignored. */
void monarch_add_task(struct monarch_scan *s, struct task *t);
/* Waits for the next task that may begin; NULL when the scan has ended. */
struct task *monarch_next_task(struct monarch_scan *s, struct monarch_batch **batch);
/* Whether so many portions wait that the listing thread looks at this one itself. Takes the
 * lock. */
int monarch_others_have_enough(struct monarch_scan *s, const struct task *t);
/* may_look: whether the names of a portion may be looked at now. count_looks: notes that they are.
 * The caller holds the lock. */
int monarch_may_look(struct monarch_scan *s, struct task *t);
void monarch_count_looks(struct monarch_scan *s, const struct task *t);
/* Takes the first task of a queue that is not empty. The caller holds the lock. */
struct task *monarch_take_first_task(struct queue *q);
/* has_tasks: whether there are tasks. take_task: takes the first task that may begin; there must be
 * one. The caller holds the lock, or no thread is left. */
int monarch_has_tasks(const struct monarch_scan *s);
struct task *monarch_take_task(struct monarch_scan *s);
/* Makes all threads check again whether they may go on. The caller holds the lock. */
void monarch_wake_scan(struct monarch_scan *s);

/* --- walk.c: listing directories, and looking at files ------------------------------------------
 */

void monarch_look_at_names(struct monarch_scan *s, struct monarch_batch **batch, struct task *t);
void monarch_walk_directory(struct monarch_scan *s, struct monarch_batch **batch, struct task *t);
/* How many names this thread has looked at. */
uint64_t monarch_looks(void);
