/* Replaces the clock with one that always shows `time_ns`, which the test sets. Include this
 * file before a file of csrc, so that the calls in that file go to this clock. */
#pragma once

#include "shared/clock.h"

static uint64_t time_ns = 1000000000000;
static uint64_t told_ns(void) { return time_ns; }
#define monarch_now_ns told_ns
