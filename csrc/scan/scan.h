/* The scan of a source: its tasks, its threads, and their shared state. */
#pragma once

#include <pthread.h>

#include "native.h"
#include "shared/pace.h"

#define BATCHES_AHEAD 8 /* if this many batches are ready for Python, the scan's threads wait */
/* How long [ns] a thread collects entries before it hands them to Python. Also the shortest time
 * between two rings of Python's doorbell, unless several batches are ready. The time is short,
 * because a file can be filled only after Python has its entry. */
#define BATCH_NS 20000000ULL
/* Number of names in a portion. A thread that lists a directory gives the names to other threads in
 * portions. So even a flat directory of a million files keeps all threads busy. */
#define PORTION 8
/* The queue of portions is full if it has this many for each of the other threads. The listing
 * thread then examines the next names itself. */
#define PORTIONS_AHEAD 16

/* A directory to list, or a portion of a directory's names to examine: read the file's attributes,
 * and report its entry. */
struct task {
    struct task *next;
    /* is_first: the scan begins with this directory, so no listing of a parent directory has
     * reported it. is_wanted: the task comes before all tasks without this flag. */
    int is_first, is_wanted;
    /* the directory has not changed since a time before the catalog had files (`since_ns`) */
    int is_settled;
    uint32_t names; /* number of names in the portion; 0: the task is to list the directory */
    uint32_t place; /* position of the portion's first name in the directory */
    size_t text;    /* number of bytes used in `path` */
    /* The directory's path, relative to the source's root ("" for the root), with its NUL. In a
     * portion, the portion's names follow the path. Each name is stored as its inode number, and
     * then the name with its NUL. */
    char path[];
};

/* Tasks, oldest first. `portions` is the number of portions among these tasks. */
struct queue {
    struct task *first, *last;
    int portions;
};

#define ALL_NAMES INT64_MAX

/* A wanted directory, which is scanned before others (monarch_scan_want). The walk may reach it
 * only later, so the latest WANTS of them are remembered. */
#define WANTS 16
struct want {
    int is_set, is_deep;
    char directory[MONARCH_PATH_MAX];
};

struct monarch_scan {
    pthread_mutex_t lock;
    pthread_cond_t more_work, may_go_on, room;
    struct queue wanted, wanted_portions;
    /* Portions of directories that are not wanted, oldest first. So entries in the catalog have
     * nearly the same order as the names in the listings. */
    struct queue portions;
    struct task *todo; /* directories, newest first: the tree is walked depth first */
    struct monarch_batch *first, *last;
    struct want wants[WANTS];
    unsigned next_want;
    int batches, busy, threads, stopping, root, error;
    int is_deep, is_whole; /* is_deep: walks subdirectories; is_whole: scans the whole source */
    unsigned source;
    uint64_t dev, errors;
    /* atomic: the inode number that the root's listing shows for ".."; 0: unknown */
    uint64_t up_ino;
    struct monarch_pace pace;
    int is_all_wanted;
    /* How many more names may be examined: [1] in wanted directories, [0] in all other directories
     * (monarch_scan_allow). */
    int64_t may_look[2];
    /* If not NULL: the catalog's writer, with whose help the scan finds known files
     * (monarch_scan_skip_known). The scan does not read the attributes of a known file. */
    struct monarch_writer *writer;
    int64_t since_ns; /* a time before the catalog had any files [CLOCK_REALTIME] */
    const struct monarch_clients *clients; /* shows which files clients are reading now; or NULL */
    uint32_t *doorbell;
    uint64_t rung_ns; /* when the doorbell was last rung for a batch */
    pthread_t thread[];
};

/* --- batch.c: the entries that were found ----------------------------------------------------- */

/* Counts a directory or file that could not be read. Takes the lock. */
void monarch_count_scan_error(struct monarch_scan *s, int error);
/* Adds an entry to the thread's own batch. If the batch is full, hands it to Python first. Before
 * the first call, *batch is NULL. renames: the result of monarch_renames_before, from before the
 * file was examined. */
void monarch_report(struct monarch_scan *s, struct monarch_batch **batch, struct monarch_entry *e,
                    const char *path, const char *target, uint64_t renames);
/* Returns how many directories programs have renamed so far. Call this before a file is examined,
 * so that a rename during the examination is noticed. */
uint64_t monarch_renames_before(const struct monarch_scan *s);
/* Hands the thread's batch to Python (monarch_scan_take). Afterwards, *batch is an empty batch or
 * NULL. May wait until Python has taken some batches. */
void monarch_hand_over_batch(struct monarch_scan *s, struct monarch_batch **batch);
/* Calls monarch_hand_over_batch if the first entry of the batch was found more than BATCH_NS
 * ago. */
void monarch_hand_over_in_time(struct monarch_scan *s, struct monarch_batch **batch);

/* --- tasks.c: the work that is left ----------------------------------------------------------- */

/* Makes a task for a directory, with room for `room` bytes of names. If memory is exhausted, counts
 * an error of the scan and returns NULL. */
struct task *monarch_new_task(struct monarch_scan *s, const char *path, size_t room);
/* Queues a task; NULL is ignored. */
void monarch_add_task(struct monarch_scan *s, struct task *t);
/* Waits for the next task that may begin, and returns it. Returns NULL if the scan has ended. */
struct task *monarch_next_task(struct monarch_scan *s, struct monarch_batch **batch);
/* Returns whether the queue for the portion `t` is full (PORTIONS_AHEAD). If so, the listing thread
 * must examine the names of `t` itself. Takes the lock. */
int monarch_others_have_enough(struct monarch_scan *s, const struct task *t);
/* monarch_may_look returns whether the names of a portion may be examined now (monarch_scan_allow).
 * monarch_count_looks subtracts the task's number of names from `may_look`. For both, the caller
 * holds the lock. */
int monarch_may_look(struct monarch_scan *s, struct task *t);
void monarch_count_looks(struct monarch_scan *s, const struct task *t);
/* Removes the first task of a nonempty queue and returns it. The caller holds the lock. */
struct task *monarch_take_first_task(struct queue *q);
/* monarch_has_tasks returns whether any task is left. monarch_take_task removes and returns the
 * first task that may begin; such a task must exist. For both, the caller holds the lock, unless
 * all of the scan's threads have ended. */
int monarch_has_tasks(const struct monarch_scan *s);
struct task *monarch_take_task(struct monarch_scan *s);
/* Wakes all waiting threads, which then check again whether they may continue. The caller holds the
 * lock. */
void monarch_wake_scan(struct monarch_scan *s);

/* --- walk.c: listing directories, and looking at files ---------------------------------------- */

void monarch_look_at_names(struct monarch_scan *s, struct monarch_batch **batch, struct task *t);
void monarch_walk_directory(struct monarch_scan *s, struct monarch_batch **batch, struct task *t);
/* Returns how many names this thread has examined. */
uint64_t monarch_looks(void);
