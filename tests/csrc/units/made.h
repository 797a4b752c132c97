/* Functions for the tests beside this file. Each C file here includes a file of the library, so
 * that tests can call its static functions too. loading.py finds the functions by their first
 * lines, which begin with EXPORT. */
#pragma once

#include "preload/session/session.h"

#define EXPORT __attribute__((visibility("default")))
#define MADE_ENTRIES 4096

/* Makes a session in memory of this process. The session's state is MONARCH_SERVING. Nearly all
 * other fields of its segments are zero. */
struct session *made_session(void);
