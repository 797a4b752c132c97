/* The thread that replaces mappings once their copies are there. */
#ifndef MONARCH_MOVE_H
#define MONARCH_MOVE_H

#include "preload/mappings/mapping_table.h"

/* Starts it; 0 if it cannot be. */
int monarch_start_mover(struct own *o);

#endif
