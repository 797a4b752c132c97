/* What the daemon does to a file's entry and its copy, one act after the other, with the functions
 * that it has for them. */
#ifndef ACTS_H
#define ACTS_H

#include "native.h"

const struct monarch_entry *entry_of(unsigned file);
void set_word(unsigned file, unsigned state, unsigned copy);
int publish_copy(unsigned file, unsigned copy);
/* Returns the number of the copy. */
unsigned make_present(unsigned file);

void begin_fill(unsigned file, unsigned slot, unsigned copy);
void fill_unit(unsigned file, unsigned slot, unsigned copy, unsigned unit);
void end_fill(unsigned slot);
/* Answers everybody who waits. */
void answer(void);

#endif
