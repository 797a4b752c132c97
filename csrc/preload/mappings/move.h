/* Starts the thread that replaces mappings of source files once the files' copies are complete. */
#pragma once

#include "preload/mappings/mapping_table.h"

/* Starts the thread. Returns 0 if it cannot be started. */
int monarch_start_mover(struct own *o);
