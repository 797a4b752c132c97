"""The scheduler for tests with the fixture `alone`, which measure times.

Other tests would distort these times. So with several workers, these tests run last, on one worker,
when all other tests have ended. The scheduler sees only the names of tests. So the fixture has one
parameter, whose value MARK becomes part of the name of each test that uses the fixture.
"""

from __future__ import annotations

import re
from typing import Any

from xdist.scheduler import WorkStealingScheduling
from xdist.scheduler.worksteal import MIN_PENDING

MARK = "alone_last"


class AloneLast(WorkStealingScheduling):  # type: ignore[misc]  # xdist has no types
    pending: list[int]

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self._alone: list[int] | None = None  # None until the tests are collected

    def check_schedule(self) -> None:
        if self._alone is None:
            names = self.collection or []
            self._alone = [i for i in self.pending if MARK in re.split(r"[][-]", names[i])]
            self.pending[:] = [index for index in self.pending if index not in self._alone]
            nodes = list(self.node2pending)
            if self._alone and len(self.pending) < MIN_PENDING * len(nodes):
                # With so few tests in `pending`, check_schedule() of xdist would shut down each
                # worker as soon as the worker has a test. So all workers but one are shut down now,
                # and the remaining worker runs all tests.
                for node in nodes[1:]:
                    node.shutdown()
                self.pending, self._alone = self.pending + self._alone, []
        if not self._alone or not self._is_shared_out():
            super().check_schedule()
            return
        up = [node for node in self.node2pending if not node.shutting_down]
        idle = [node for node in up if len(self.node2pending[node]) < MIN_PENDING]
        if idle and len(self.node2pending) == 1:
            self.pending, self._alone = self._alone, []
            super().check_schedule()
            return
        # A worker does not run its last test until it gets another test or is shut down.
        for node in idle[: len(up) - 1]:
            node.shutdown()

    @property
    def tests_finished(self) -> bool:
        return not self._alone and super().tests_finished

    def _is_shared_out(self) -> bool:
        """Returns whether no test is left that an idle worker could get or steal."""
        is_stealing = self.steal_requested_from_node is not None
        queues = self.node2pending.values()
        return not (
            self.pending or is_stealing or any(len(queue) > MIN_PENDING for queue in queues)
        )
