"""Decides when a dropped plan is retried.

A plan is dropped if a job does not do what the plan predicts. Another job may follow the plan. So a
dropped plan is retried in three cases: the plan's file has changed; a `monarch run` begins; or the
processes that used the session when the plan was dropped have all ended, and programs have opened
files since then. A thread checks whether one of these cases has occurred.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

from monarch_py.util.processes import began, mapping


@dataclass(eq=False)
class Job:
    """The processes that use a session when `is_over` is first called.

    prefix : the beginning of the paths of the session's catalogs. A process that maps such a
        catalog has looked up a file of the sources, and so uses the session
    over_at : the time.monotonic() at which all these processes were found to have ended [s];
        infinity until then
    """

    prefix: str
    over_at: float = field(default=float("inf"), init=False)
    _users: dict[Path, int | None] | None = field(default=None, init=False)

    def is_over(self) -> bool:
        """Whether all processes that used the session when this method was first called have
        ended."""
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
