/* Finds the Python interpreter for which this library was installed, and where monarch_py is
 * installed. */
#pragma once

#include "shared/path.h"

/* Writes the interpreter's path to `python`, and the path of the directory that contains the
 * package monarch_py to `packages`. Both buffers have MONARCH_PATH_MAX bytes. Returns 0 if the
 * interpreter is not found. */
int monarch_find_interpreter(char *python, char *packages);
