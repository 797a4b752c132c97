/* Finds the Python interpreter for which this library was installed, and the directory of the
 * packages that were installed together with the library. */
#pragma once

#include "shared/path.h"

/* Writes the interpreter's path to `python`. Writes to `packages` the path of the directory that
 * contains the package monarch_py. Both buffers have MONARCH_PATH_MAX bytes. Returns 0 if there is
 * no interpreter. */
int monarch_find_interpreter(char *python, char *packages);
