/* The thread that replaces mappings once their copies are complete. */
#pragma once

#include "preload/mappings/mapping_table.h"

/* Starts the thread; 0 if that fails. */
int monarch_start_mover(struct own *o);
