"""Two processes under the library change files by turns, in every way, while daemons fill, come and
go: from then on both see what a process without the library sees, and that is what the change does
where nobody serves. (What each single call does, in each state of a copy: csrc/test_changes.py.)"""

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
# A daemon serves so many changes, and then the next one comes.
ROUND = 20
# The source's speed, and where names are answered from.
PLACES = ("local, cached", "slow, cached", "slow, source")
# What is compared after each change: what each of the two sees with what the third sees, the
# change's answer and what it has made with the same change where nobody serves.
COMPARISONS = 4


def comparable(found: dict[str, Any], plot: str) -> dict[str, Any]:
    """Of what was seen of a directory, what must be equal in another one with the same content."""
    own = ("ino", "dev", "mtime_ns", "ctime_ns")

    def attributes(seen: Any) -> Any:
        if not isinstance(seen, dict):
            return seen
        kept = {name: value for name, value in seen.items() if name not in own}
        # Times that were set, and not the clock's.
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
    """A session whose source is the directory `source` of a place that has its twin too; where it
    is slow, the tiers have not room for all."""
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
    """Every operation as often as any other, in any order."""
    rounds = count // len(OPERATIONS) + 1
    return [name for _ in range(rounds) for name in draws.sample(OPERATIONS, len(OPERATIONS))][
        :count
    ]


def take_turns(session: Session, seed: int, count: int) -> None:
    """Makes `count` changes; AssertionError at the first that somebody sees otherwise."""
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
    """One change by one of the two; then all look."""
    without, name = processes["without"], str(draws.randrange(PLOTS))
    plot, twin = (str(session.source.parent / place / name) for place in ("source", "twin"))
    who, arguments = draws.choice(("one", "other")), draws.randrange(1 << 30)
    what += f": {operation} in {plot} by {who}"
    # What was remembered of it must not outlive the change.
    processes[draws.choice(("one", "other"))]("look", plot)
    said = processes[who]("change", operation, arguments, plot, who)
    seen = {name: process("look", plot) for name, process in processes.items()}
    assert seen["one"] == seen["without"], what
    assert seen["other"] == seen["without"], what
    assert said == without("change", operation, arguments, twin, who), what
    assert comparable(seen["without"], plot) == comparable(without("look", twin), twin), what
