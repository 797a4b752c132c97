"""Two nodes that share a dataset. One of them gets the faults: it asks the other, and is asked."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from unittest.mock import patch

from support.nodes import MIB, Node, Nodes
from trials.reading import Reading

from faults.scenario import (
    END_LIMIT_S,
    LAPS_LIMIT_S,
    SIZES,
    Outcome,
    Site,
    end,
    suppress_assertion,
)
from monarch_py.daemon import lifecycle
from monarch_py.errors import SessionError

__all__ = ["PairSite"]

# Who gets the faults.
FAULTY = 1
# Each has room for half of the dataset; the rest is staged when it is read.
QUOTA_BYTES = 3 * MIB


class PairSite(Site):
    """Its one role is `node`: the daemon of the second node."""

    def _clear(self) -> None:
        super()._clear()
        shutil.rmtree(self.directory / "nodes", ignore_errors=True)

    def _run(self, role: str, words: Sequence[str]) -> Outcome:
        outcome = Outcome()
        self._epoch(self._prefix(words), 2, outcome)
        after = Outcome()
        self._epoch([], 1, after)
        if after.ended != "status 0" or after.broken:
            outcome.broken += [f"the next session: {what}" for what in (after.ended, *after.broken)]
        for tier in self.directory.glob("nodes/*/tier"):
            if left := [path for path in tier.rglob("c/*") if path.is_file()]:
                outcome.broken.append(f"{tier} has {len(left)} copies of nobody")
        return outcome

    def _epoch(self, prefix: Sequence[str], laps: int, outcome: Outcome) -> None:
        """Both nodes start, a program on each reads everything, and both end."""
        directory = self.directory / "nodes"
        nodes = Nodes(directory, [self.source] * 2, [QUOTA_BYTES] * 2, prefetch="auto").all
        with ExitStack() as stack:
            for rank, node in enumerate(nodes):
                self._start_node(node, prefix if rank == FAULTY else [], stack, outcome)
            with suppress_assertion(outcome, "the readers"):
                readings = [self._begin(stack, node, number) for number, node in enumerate(nodes)]
                for reading in readings:
                    reading.wait_laps(laps, LAPS_LIMIT_S)
                for reading in readings:
                    reading.end(END_LIMIT_S)

    def _begin(self, stack: ExitStack, node: Node, number: int) -> Reading:
        state = self.directory / f"state{number}"
        reading = Reading(self._reader, node, self.source, SIZES, state, seed=number, threads=2)
        return stack.enter_context(reading)

    @staticmethod
    def _start_node(node: Node, prefix: Sequence[str], stack: ExitStack, outcome: Outcome) -> None:
        """One that cannot start says why; its programs then read the source."""
        command = lifecycle._command

        def traced(*arguments: object) -> list[str]:
            return [*prefix, *command(*arguments)]  # type: ignore[arg-type]

        stack.callback(node.listener.close)
        with patch.object(lifecycle, "_command", traced):
            try:
                node.start()
            except SessionError as error:
                outcome.ended = f"did not start: {error}"
                if "Traceback" in str(error):
                    outcome.broken.append(str(error))
                return
        stack.callback(end, node, outcome)
