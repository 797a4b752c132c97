"""Two nodes that share a dataset. One node gets the faults; each node asks the other for data."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

from support.nodes import MIB, Node, Nodes
from support.session import wait_until
from trials.reading import Reading

from faults.scenario import (
    END_LIMIT_S,
    LAPS_LIMIT_S,
    SIZES,
    Outcome,
    Site,
    end,
    look_at_shared_memory,
    noted_in,
)
from monarch_py.daemon import starting

__all__ = ["PairSite"]

# The rank of the node that gets the faults.
FAULTY = 1
# Each node has room for about half of the dataset; the other files are staged when they are read.
QUOTA_BYTES = 3 * MIB


class PairSite(Site):
    """A site with one role, `node`: the daemon of the second node."""

    def _clear(self) -> None:
        super()._clear()
        shutil.rmtree(self.directory / "nodes", ignore_errors=True)

    def _places(self) -> list[Path]:
        return [self.directory / "nodes" / f"node{FAULTY}", *super()._places()]

    def _run(self, role: str, words: Sequence[str]) -> Outcome:
        outcome, after = Outcome(), Outcome()
        self._epoch(words, 2, outcome)
        self._epoch((), 1, after)
        outcome.broken += [f"the next session: {what}" for what in after.broken]
        for tier in self.directory.glob("nodes/*/tier"):
            if left := [path for path in tier.rglob("c/*") if path.is_file()]:
                outcome.broken.append(f"{tier} has {len(left)} copies that no manifest records")
        return outcome

    def _epoch(self, words: Sequence[str], laps: int, outcome: Outcome) -> None:
        """Starts both nodes, runs on each node a program that reads all files, and ends both nodes.
        If there is no fault (empty `words`), also verifies all copies, and checks what is left in
        shared memory."""
        directory = self.directory / "nodes"
        nodes = Nodes(directory, [self.source] * 2, [QUOTA_BYTES] * 2, prefetch="auto").all
        with ExitStack() as stack:
            for rank, node in enumerate(nodes):
                self._start_node(node, words if rank == FAULTY else (), stack, outcome)
            with noted_in(outcome, "the readers"):
                readings = [self._begin(stack, node, number) for number, node in enumerate(nodes)]
                for reading in readings:
                    reading.wait_laps(laps, LAPS_LIMIT_S)
                for reading in readings:
                    reading.end(END_LIMIT_S)
                for node in () if words else nodes:
                    node.wait_idle(END_LIMIT_S)
                    verified = node.monarch("verify")
                    assert verified.returncode == 0, verified.stdout + verified.stderr
        for node in () if words else nodes:
            look_at_shared_memory(node, outcome)

    def _begin(self, stack: ExitStack, node: Node, number: int) -> Reading:
        state = self.directory / f"state{number}"
        reading = Reading(self._reader, node, self.source, SIZES, state, seed=number, threads=2)
        return stack.enter_context(reading)

    def _start_node(
        self, node: Node, words: Sequence[str], stack: ExitStack, outcome: Outcome
    ) -> None:
        """Starts a node, and waits until it serves or has ended. A node that gets a fault may end
        with a message that gives the reason. Its programs then read the source."""
        command = starting._command

        def traced(*arguments: object) -> list[str]:
            prefix = self._prefix(words) if words else []
            return [*prefix, *command(*arguments)]  # type: ignore[arg-type]

        with patch.object(starting, "_command", traced):
            node.begin(is_forked=not words)
        # The session's own `wait_up` cannot be used here, because it expects that the daemon runs
        # without a tracer and does not end.
        wait_until(
            lambda: has_ended(node) or node.connection.serves(),
            timeout=END_LIMIT_S,
            what="the start of a node, or its end",
        )
        # The daemon has inherited this socket. If this process kept it open too, peers could still
        # connect after the daemon's end.
        node.listener.close()
        stack.callback(end, node, outcome, words)
        if not words and has_ended(node):
            outcome.broken.append("a node that got no fault did not start")


def has_ended(node: Node) -> bool:
    return node.daemon is None or node.daemon.poll() is not None
