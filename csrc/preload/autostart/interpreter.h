/* Finds the Python for which this library was installed, and the packages installed with it. */
#pragma once

#include "shared/path.h"

/* Writes the interpreter's path to `python`. Writes the path of the directory that has the package
 * monarch_py to `packages`. Both have MONARCH_PATH_MAX bytes. Returns 0 if there is no
 * interpreter. */
int monarch_find_interpreter(char *python, char *packages);
