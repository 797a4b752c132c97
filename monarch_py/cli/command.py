"""Checks whether the command of `monarch run` can be run, before a daemon is started for it."""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Unusable", "why_unusable"]

# Exit statuses that a shell gives for a command that does not exist, or cannot be executed.
NOT_FOUND, NOT_RUNNABLE = 127, 126
# Characters that suggest a line for a shell, quoted as one word.
SHELL_SIGNS = frozenset(" \t\n;&|<>()$`*?")


class Unusable(NamedTuple):
    """Why a command cannot be run. status : the exit status that a shell would give"""

    status: int
    why: str


def why_unusable(name: str, environment: Mapping[str, str]) -> Unusable | None:
    """Why execvp(3) could not run the command in this environment; None if it can."""
    found = None
    for path in _candidates(name, environment):
        problem = _problem(path)
        if problem is None:
            return None
        # A file that may not be executed does not hide one that may, later in PATH.
        if problem.status == NOT_RUNNABLE:
            found = found or problem
    if found is not None:
        return Unusable(found.status, f"{name}: {found.why}")
    hint = ""
    if SHELL_SIGNS & set(name):
        hint = f"; a line for the shell is run with: monarch run -- sh -c {shlex.quote(name)}"
    return Unusable(NOT_FOUND, f"{name}: command not found{hint}")


def _candidates(name: str, environment: Mapping[str, str]) -> list[str]:
    if "/" in name or not name:
        return [name]
    # An empty part of PATH is the working directory.
    return [os.path.join(part or ".", name) for part in os.get_exec_path(environment)]


def _problem(path: str) -> Unusable | None:
    try:
        mode = os.stat(path).st_mode
    except PermissionError as error:
        return Unusable(NOT_RUNNABLE, str(error.strerror))
    except (OSError, ValueError):
        return Unusable(NOT_FOUND, "")
    if not stat.S_ISREG(mode) or not os.access(path, os.X_OK, effective_ids=True):
        return Unusable(NOT_RUNNABLE, os.strerror(errno.EACCES))
    return None
