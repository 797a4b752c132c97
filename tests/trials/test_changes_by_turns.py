"""Two processes under the library change files by turns, in every way, while daemons fill, come and
go: from then on both see what a process without the library sees, and that is what the change does
where nobody serves. (What each single call does, in each state of a copy: csrc/test_changes.py.)"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.commands import Commands
from support.session import MIB, Session
from trials.changes import OPERATIONS, plant

from monarch_py.demo.slowsource import SlowSource

PROGRAM = Path(__file__).parent / "changes.py"
PLOTS = 8
# A daemon serves so many changes, and then the next one comes.
ROUND = 20
# A slow source makes each look at what there is ten times as long.
SHORT, LONG = {"local": 120, "slow": 40}, {"local": 4000, "slow": 1000}


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


@pytest.fixture(params=["local, cached", "slow, cached", "slow, source"])
def session(
    request: pytest.FixtureRequest, session_factory: Callable[..., Session], tmp_path: Path
) -> Session:
    """The source lies in the directory `source` of a place that has its twin too; where it is slow,
    the tiers have not room for all."""
    where, metadata = request.param.split(", ")
    top = tmp_path / "local"
    if where == "slow":
        slow: SlowSource = request.getfixturevalue("slow_factory")()
        slow.rate(30e6)
        slow.latency(open=0.0005)
        top = slow.mountpoint
    for plot in range(PLOTS):
        for twin in ("source", "twin"):
            plant(str(top / twin / str(plot)), plot)
    for name in ("tier", "staging"):
        (tmp_path / name).mkdir()
    quota, staging = (256, 64) if where == "local" else (2, 1)
    return session_factory(
        top / "source",
        tiers=[{"mount_point": tmp_path / "tier", "max_storage_quota": quota * MIB}],
        staging={"mount_point": str(tmp_path / "staging"), "max_storage_quota": staging * MIB},
        metadata=metadata,
        prefetch="eager",
    )


@pytest.fixture
def processes(session: Session) -> Iterator[dict[str, Commands]]:
    """Two with the library, and one without."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(Commands(session, PROGRAM, preload=name != "without"))
            for name in ("one", "other", "without")
        }


def drawn(draws: random.Random, count: int) -> list[str]:
    """Every operation as often as any other, in any order."""
    rounds = count // len(OPERATIONS) + 1
    return [name for _ in range(rounds) for name in draws.sample(OPERATIONS, len(OPERATIONS))][
        :count
    ]


@pytest.mark.parametrize(
    ("seed", "counts"), [(1, SHORT), pytest.param(2, LONG, marks=pytest.mark.long)], ids=["1", "2"]
)
def test_everybody_sees_every_change(
    session: Session, processes: dict[str, Commands], seed: int, counts: dict[str, int]
) -> None:
    count = counts["slow" if session.source.parent.is_mount() else "local"]
    draws, hits = random.Random(seed), 0
    without = processes["without"]
    for number, operation in enumerate(drawn(draws, count)):
        if number % ROUND == 0:
            if session.daemon is not None:
                hits += session.totals()["hits"]
                draws.choice((session.stop, session.kill))()
            session.start().wait_scanned()
        name = str(draws.randrange(PLOTS))
        plot, twin = (str(session.source.parent / place / name) for place in ("source", "twin"))
        who, arguments = draws.choice(("one", "other")), draws.randrange(1 << 30)
        what = f"change {number}: {operation} in {plot} by {who}"
        # What was remembered of it must not outlive the change.
        processes[draws.choice(("one", "other"))]("look", plot)
        said = processes[who]("change", operation, arguments, plot, who)
        seen = {name: process("look", plot) for name, process in processes.items()}
        assert seen["one"] == seen["without"], what
        assert seen["other"] == seen["without"], what
        assert said == without("change", operation, arguments, twin, who), what
        assert comparable(seen["without"], plot) == comparable(without("look", twin), twin), what
    assert hits + session.totals()["hits"] > count
