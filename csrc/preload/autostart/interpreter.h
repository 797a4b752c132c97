/* Finds the Python that has installed this library, and the packages beside it. */
#pragma once

#include "shared/path.h"

/* Writes the interpreter's path to `python`, and to `packages` the directory in which the package
 * monarch_py lies (MONARCH_PATH_MAX bytes each). Returns 0 if there is no interpreter. */
int monarch_find_interpreter(char *python, char *packages);
