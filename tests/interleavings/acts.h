/* The daemon's actions on a file's entry and on its copy, one function per action. These functions
 * call the daemon's own functions for the catalog. */
#ifndef ACTS_H
#define ACTS_H

#include "native.h"

const struct monarch_entry *entry_of(unsigned file);
void set_word(unsigned file, unsigned state, unsigned copy);
int publish_copy(unsigned file, unsigned copy);
/* Makes a complete copy of the file and publishes it. Returns the copy's number. */
unsigned make_present(unsigned file);

void begin_fill(unsigned file, unsigned slot, unsigned copy);
void fill_unit(unsigned file, unsigned slot, unsigned copy, unsigned unit);
void end_fill(unsigned slot);
/* Wakes all readers that wait for a unit. */
void answer(void);

#endif
