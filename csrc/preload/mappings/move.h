/* The thread that replaces mappings once their copies are complete. */
#ifndef MONARCH_MOVE_H
#define MONARCH_MOVE_H

#include "preload/mappings/mapping_table.h"

/* Starts the thread; 0 if that fails. */
int monarch_start_mover(struct own *o);

#endif
