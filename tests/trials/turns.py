"""Two processes under the library change files in turn, with every kind of change, while daemons
start and end.

After each change, both processes see the same as a process without the library. Each change also
has the same result as in an equal directory that no daemon serves. csrc/test_changes.py tests the
effect of each single call, in each state of a copy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from support.commands import Commands
from support.session import MIB, Session
from trials.changes import OPERATIONS, plant

from monarch_py.demo.slowsource import SlowSource

PROGRAM = Path(__file__).parent / "changes.py"
PLOTS = 8
# The number of changes after which a new daemon replaces the old one.
ROUND = 20
# Each place is "SPEED, METADATA": the speed of the source, and the setting `metadata` of the
# session.
PLACES = ("local, cached", "slow, cached", "slow, source")
# The number of comparisons after each change. Two comparisons check that each of the two processes
# under the library sees the same as the process without the library. Then the same change is made
# in the directory's twin, an equal directory outside the source. Two comparisons check that this
# change has the same answer, and that the two directories are equal again.
COMPARISONS = 4


def comparable(found: dict[str, Any], plot: str) -> dict[str, Any]:
    """Returns what `look` found in a directory, without what may differ between the directory and
    its twin: inode numbers, device numbers, times of the clock, and the directory's own path."""
    own = ("ino", "dev", "mtime_ns", "ctime_ns")

    def attributes(seen: Any) -> Any:
        if not isinstance(seen, dict):
            return seen
        kept = {name: value for name, value in seen.items() if name not in own}
        # Only an mtime that a program has set is compared. All other mtimes come from the clock,
        # and are later than the constant below.
        return kept | {"mtime": min(seen["mtime_ns"], 1_600_000_000 * 10**9)}

    def name(seen: Any) -> Any:
        content = seen["content"]
        if isinstance(content, list):
            content = [*content[:3], attributes(content[3])]
        return {
            **seen,
            "lstat": attributes(seen["lstat"]),
            "stat": attributes(seen["stat"]),
            "real": seen["real"].removeprefix(plot),
            "content": content,
            "entry": (seen.get("entry") or [None])[1:],
        }

    return {path: seen if path == "." else name(seen) for path, seen in found.items()}


@contextmanager
def grounds(directory: Path, place: str, slowsource: Path) -> Iterator[Session]:
    """Yields a session whose source is the directory `source`. A directory
    `twin` with the same content lies beside it; no daemon serves `twin`.

    On a slow source, the tiers do not have room for all files.
    """
    where, metadata = place.split(", ")
    for name in ("backing", "mount", "tier", "staging", "session"):
        (directory / name).mkdir()
    top = directory / "mount"
    with ExitStack() as stack:
        if where == "slow":
            mounted = SlowSource(directory / "backing", top, binary=slowsource)
            slow = stack.enter_context(mounted)
            slow.rate(30e6)
            slow.latency(open=0.0005)
        for plot in range(PLOTS):
            for twin in ("source", "twin"):
                plant(str(top / twin / str(plot)), plot)
        quota, staging = (256, 64) if where == "local" else (2, 1)
        session = Session(
            directory / "session",
            top / "source",
            tiers=[{"mount_point": directory / "tier", "max_storage_quota": quota * MIB}],
            staging={
                "mount_point": str(directory / "staging"),
                "max_storage_quota": staging * MIB,
            },
            metadata=metadata,
            prefetch="eager",
        )
        yield stack.enter_context(session)


def drawn(draws: random.Random, count: int) -> list[str]:
    """Returns `count` operations in random order. All operations occur about equally often."""
    rounds = count // len(OPERATIONS) + 1
    return [name for _ in range(rounds) for name in draws.sample(OPERATIONS, len(OPERATIONS))][
        :count
    ]


def take_turns(session: Session, seed: int, count: int) -> None:
    """Makes `count` changes. Raises AssertionError at the first change after which the processes do
    not all see the same."""
    draws, hits = random.Random(seed), 0
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(Commands(session, PROGRAM, preload=name != "without"))
            for name in ("one", "other", "without")
        }
        for number, operation in enumerate(drawn(draws, count)):
            if number % ROUND == 0:
                if session.daemon is not None:
                    hits += session.totals()["hits"]
                    draws.choice((session.stop, session.kill))()
                session.start().wait_scanned()
            change(session, processes, draws, f"change {number}", operation)
        assert hits + session.totals()["hits"] > count


def change(
    session: Session,
    processes: dict[str, Commands],
    draws: random.Random,
    what: str,
    operation: str,
) -> None:
    """Lets one of the two processes under the library make a change. Then compares what these
    processes and a process without the library see."""
    without, name = processes["without"], str(draws.randrange(PLOTS))
    plot, twin = (str(session.source.parent / place / name) for place in ("source", "twin"))
    who, arguments = draws.choice(("one", "other")), draws.randrange(1 << 30)
    what += f": {operation} in {plot} by {who}"
    # One process examines the files before the change. If it remembered their old state, it would
    # see wrong results after the change.
    processes[draws.choice(("one", "other"))]("look", plot)
    said = processes[who]("change", operation, arguments, plot, who)
    seen = {name: process("look", plot) for name, process in processes.items()}
    assert seen["one"] == seen["without"], what
    assert seen["other"] == seen["without"], what
    assert said == without("change", operation, arguments, twin, who), what
    assert comparable(seen["without"], plot) == comparable(without("look", twin), twin), what
