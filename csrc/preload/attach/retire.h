/* Releases sessions whose daemon is gone and that nothing in the process uses any more. */
#pragma once

#include "preload/session/session.h"

/* Called after `newest` has replaced a session: releases the mappings of all sessions before that
 * one, except those of which the process has copies or listings open. */
void monarch_retire(struct session *newest);
