/* Files on which this process has taken locks, or asked for asynchronous signals. */
#pragma once

#include <stdint.h>

void monarch_note_locks(uint64_t dev, uint64_t ino);
int monarch_has_locks(uint64_t dev, uint64_t ino);
