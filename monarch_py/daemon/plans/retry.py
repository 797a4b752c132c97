"""Tells when a plan that was dropped is tried again.

The plan was dropped because a job did not do what the plan says. Another job may. So the plan is
tried again when all processes that used the session then have ended and others open files, at the
next `monarch run`, and when its file holds another plan. These checks run in a thread.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

from monarch_py.util.processes import began, mapping

# The version of a plan's file: its inode, size and mtime. Another plan in the file changes one of
# them.
Version = tuple[int, int, int] | None


def version_of(file: Path) -> Version:
    """The version of a plan's file; None when it cannot be looked at, and nothing is known of
    it."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(eq=False)
class Job:
    """The processes that use a session.

    prefix : of the paths of the session's catalogs; a process that has looked for a file of its
    sources has such a catalog mapped;  over_at : when all of them were found to have ended [s, as
    time.monotonic]
    """

    prefix: str
    over_at: float = field(default=float("inf"), init=False)
    _users: dict[Path, int | None] | None = field(default=None, init=False)

    def is_over(self) -> bool:
        """Whether all processes have ended that were there when this was asked first."""
        if self._users is None:
            self._users = {each: began(each) for each in mapping(self.prefix)}
        self._users = {
            each: start
            for each, start in self._users.items()
            if start is not None and began(each) == start
        }
        if not self._users:
            self.over_at = min(self.over_at, time.monotonic())
        return not self._users
