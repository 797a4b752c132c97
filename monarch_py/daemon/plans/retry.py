"""Finds out that a job has ended, so that the next job can follow a plan from another position.

A plan is dropped if a job does not open files as the plan predicts. But a later job may follow the
plan. So a dropped plan is retried in three cases: the plan's file has changed; a `monarch run`
begins; or the earlier job has ended and programs have opened files since then. In the last two
cases, plans that were not dropped are told of the new job too, because this job may begin at
another position (`PlanTracker.begin_job`). A job has ended when all its processes have ended. A
thread checks these cases.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

from monarch_py.util.processes import began, mapping


@dataclass(eq=False)
class Job:
    """The processes that use a session when `is_over` is called for the first time.

    prefix : the paths of the session's catalogs begin with this text. A process uses the session if
        it maps a catalog, because it has then looked up a file of the sources
    over_at : when `is_over` found that all these processes had ended, as a value of
        time.monotonic() [s]; infinity until then
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
