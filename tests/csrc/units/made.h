/* Functions for the tests beside this file. Each C file here includes a file of the library, so
 * that tests can call its static functions too. Python learns of the functions from their first
 * lines, which begin with EXPORT. */
#pragma once

#include "preload/session/session.h"

#define EXPORT __attribute__((visibility("default")))
#define MADE_ENTRIES 4096

/* Makes a session that serves, in memory of this process. All its segments are zero otherwise. */
struct session *made_session(void);
