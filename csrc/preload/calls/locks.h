/* The lock commands of fcntl. */
#ifndef MONARCH_LOCKS_H
#define MONARCH_LOCKS_H

int monarch_is_lock(int command);
int monarch_lock(int fd, int command, void *arg);

#endif
