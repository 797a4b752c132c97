/* The lock commands of fcntl. */
#pragma once

int monarch_is_lock(int command);
int monarch_lock(int fd, int command, void *arg);
