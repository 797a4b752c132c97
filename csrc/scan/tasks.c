/* The tasks of a scan. A task is a directory to list, or a portion of a directory's names to
 * examine. This file decides which task comes first, and how many names may be examined now. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scan/scan.h"

struct task *monarch_new_task(struct monarch_scan *s, const char *path, size_t room) {
    size_t len = strlen(path) + 1;
    struct task *t = malloc(sizeof *t + len + room);
    if (!t) {
        monarch_count_scan_error(s, ENOMEM);
        return NULL;
    }
    t->is_first = t->is_wanted = t->is_settled = 0;
    t->names = t->place = 0;
    t->text = len;
    memcpy(t->path, path, len);
    return t;
}

/* Returns whether `above` is `path` itself or a directory above it. */
static int leads_through(const char *path, const char *above) {
    size_t n = strlen(above);
    return !n || (strncmp(path, above, n) == 0 && (!path[n] || path[n] == '/'));
}

/* Returns whether `directory` is wanted because of `w`. The directory of `w` is wanted, and so are
 * all directories above it, because the walk leads through them. If w->is_deep is set, the
 * directories below it are wanted too. */
static int is_named(const struct want *w, const char *directory) {
    return leads_through(w->directory, directory) ||
           (w->is_deep && leads_through(directory, w->directory));
}

static int is_wanted(const struct monarch_scan *s, const char *directory) {
    for (int i = 0; i < WANTS; i++)
        if (s->wants[i].is_set && is_named(&s->wants[i], directory))
            return 1;
    return 0;
}

static void append(struct queue *q, struct task *t) {
    t->next = NULL;
    *(q->first ? &q->last->next : &q->first) = t;
    q->last = t;
    q->portions += t->names > 0;
}

/* Removes the first task of a nonempty queue and returns it. */
struct task *monarch_take_first_task(struct queue *q) {
    struct task *t = q->first;
    q->first = t->next;
    q->portions -= t->names > 0;
    return t;
}

/* Returns a pointer to how many names may still be examined in wanted directories (is_wanted = 1)
 * or in all others (0). The caller holds the lock. */
static int64_t *looks_left(struct monarch_scan *s, int is_wanted) {
    return &s->may_look[is_wanted || s->is_all_wanted];
}

void monarch_count_looks(struct monarch_scan *s, const struct task *t) {
    int64_t *left = looks_left(s, t->is_wanted);
    if (*left != ALL_NAMES)
        *left -= t->names;
}

int monarch_may_look(struct monarch_scan *s, struct task *t) {
    t->is_wanted |= is_wanted(s, t->path);
    return *looks_left(s, t->is_wanted) > 0;
}

/* Returns whether any task may begin. A wanted directory may always be listed. */
static int may_begin(struct monarch_scan *s) {
    return s->wanted.first || (s->may_look[1] > 0 && s->wanted_portions.first) ||
           (*looks_left(s, 0) > 0 && (s->portions.first || s->todo));
}

void monarch_add_task(struct monarch_scan *s, struct task *t) {
    if (!t)
        return;
    pthread_mutex_lock(&s->lock);
    t->is_wanted |= is_wanted(s, t->path);
    if (t->is_wanted || t->names) {
        append(!t->names ? &s->wanted : t->is_wanted ? &s->wanted_portions : &s->portions, t);
    } else {
        t->next = s->todo;
        s->todo = t;
    }
    if (may_begin(s))
        pthread_cond_signal(&s->more_work);
    pthread_mutex_unlock(&s->lock);
}

int monarch_others_have_enough(struct monarch_scan *s, const struct task *t) {
    pthread_mutex_lock(&s->lock);
    int enough = (t->is_wanted ? &s->wanted_portions : &s->portions)->portions >=
                 (s->threads - 1) * PORTIONS_AHEAD;
    pthread_mutex_unlock(&s->lock);
    return enough;
}

int monarch_has_tasks(const struct monarch_scan *s) {
    return s->wanted.first || s->wanted_portions.first || s->portions.first || s->todo;
}

/* Removes and returns the first task that may begin; such a task must exist. */
struct task *monarch_take_task(struct monarch_scan *s) {
    struct task *t = s->todo;
    if (s->wanted.first)
        t = monarch_take_first_task(&s->wanted);
    else if (s->may_look[1] > 0 && s->wanted_portions.first)
        t = monarch_take_first_task(&s->wanted_portions);
    else if (s->portions.first)
        t = monarch_take_first_task(&s->portions);
    else
        s->todo = t->next;
    monarch_count_looks(s, t);
    return t;
}

/* If the thread has to wait for work, hands over its batch first, so that the batch reaches Python
 * without delay. The wait may be long, because another thread may hang in a listing. */
struct task *monarch_next_task(struct monarch_scan *s, struct monarch_batch **batch) {
    struct task *t = NULL;
    pthread_mutex_lock(&s->lock);
    int waits = !may_begin(s);
    pthread_mutex_unlock(&s->lock);
    if (waits)
        monarch_hand_over_batch(s, batch);
    pthread_mutex_lock(&s->lock);
    s->busy--;
    while (!may_begin(s) && (monarch_has_tasks(s) || s->busy > 0) && !s->stopping)
        pthread_cond_wait(&s->more_work, &s->lock);
    if (may_begin(s) && !s->stopping) {
        t = monarch_take_task(s);
        s->busy++;
        /* if more tasks may begin, wakes one more thread, which in turn wakes the next */
        if (may_begin(s))
            pthread_cond_signal(&s->more_work);
    } else {
        pthread_cond_broadcast(&s->more_work);
    }
    pthread_mutex_unlock(&s->lock);
    return t;
}

void monarch_wake_scan(struct monarch_scan *s) {
    pthread_cond_broadcast(&s->more_work);
    pthread_cond_broadcast(&s->may_go_on);
}

/* --- calls from Python ------------------------------------------------------------------------ */

/* Moves the directories that are wanted because of `w` (is_named) from the list `*at` to the queue
 * of wanted directories. */
static void move_wanted(struct monarch_scan *s, const struct want *w, struct task **at) {
    for (struct task *t; (t = *at);) {
        if (!is_named(w, t->path)) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        t->is_wanted = 1;
        append(&s->wanted, t);
    }
}

static void move_wanted_portions(struct monarch_scan *s, const struct want *w) {
    struct queue left = s->portions;
    s->portions = (struct queue){NULL, NULL, 0};
    while (left.first) {
        struct task *t = monarch_take_first_task(&left);
        t->is_wanted = is_named(w, t->path);
        append(t->is_wanted ? &s->wanted_portions : &s->portions, t);
    }
}

void monarch_scan_want(struct monarch_scan *s, const char *directory, int is_deep) {
    pthread_mutex_lock(&s->lock);
    if (*directory || !is_deep) {
        struct want *w = &s->wants[s->next_want++ % WANTS];
        snprintf(w->directory, sizeof w->directory, "%s", directory);
        w->is_set = 1;
        w->is_deep = is_deep;
        move_wanted(s, w, &s->todo);
        move_wanted_portions(s, w);
    } else {
        s->is_all_wanted = 1; /* all directories are wanted */
    }
    monarch_wake_scan(s);
    pthread_mutex_unlock(&s->lock);
}

/* Wakes one thread for each PORTION of `names` names, and one more. Further threads would find no
 * work. If there is more work nevertheless, a woken thread wakes the next. */
static void wake_for(struct monarch_scan *s, int64_t names) {
    int64_t portions = names / PORTION + 1;
    if (portions >= s->threads)
        pthread_cond_broadcast(&s->more_work);
    else
        for (int64_t i = 0; i < portions; i++)
            pthread_cond_signal(&s->more_work);
    pthread_cond_broadcast(&s->may_go_on);
}

void monarch_scan_allow(struct monarch_scan *s, int64_t wanted, int64_t more_others) {
    pthread_mutex_lock(&s->lock);
    int64_t others = s->may_look[0] == ALL_NAMES ? 0 : s->may_look[0];
    /* may_look[1] is the allowance for wanted directories. If `wanted` is 0, an allowance with a
     * limit stays, and an allowance without a limit becomes 0. */
    if (wanted || s->may_look[1] == ALL_NAMES)
        s->may_look[1] = wanted < 0 ? ALL_NAMES : wanted;
    s->may_look[0] = more_others < 0 ? ALL_NAMES : others + more_others;
    if (wanted < 0 || more_others < 0)
        monarch_wake_scan(s);
    else if (wanted || more_others)
        wake_for(s, wanted + (s->may_look[0] > 0 ? s->may_look[0] : 0));
    pthread_mutex_unlock(&s->lock);
}
