/* Files on which this process has taken locks, or asked for asynchronous signals. */
#ifndef MONARCH_LOCKED_FILES_H
#define MONARCH_LOCKED_FILES_H

#include <stdint.h>

void monarch_note_locks(uint64_t dev, uint64_t ino);
int monarch_has_locks(uint64_t dev, uint64_t ino);

#endif
