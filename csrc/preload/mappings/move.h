/* The thread that replaces mappings when their copies are complete. */
#pragma once

#include "preload/mappings/mapping_table.h"

/* Starts the thread. Returns 0 if it cannot be started. */
int monarch_start_mover(struct own *o);
