"""Runs a trial in many orders of its threads' steps. Several processes divide these orders among
themselves."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from csrc.sanitizing import with_names
from support.segments import segments
from support.session import MIB, Session

__all__ = ["Explored", "explore"]

MOST_SHARES = 8
LOOK_S = 0.005


@dataclass
class Explored:
    """The result of a trial.

    wrong : the error output of a process that found a wrong order; "" if no order was wrong
    counts : the counters that the processes have printed, summed
    """

    wrong: str = ""
    counts: Counter[str] = field(default_factory=Counter)


@contextmanager
def _session(directory: Path) -> Iterator[Session]:
    """Yields a session without a daemon."""
    for place in ("source", "tier", "kept"):
        (directory / place).mkdir(mode=0o700, parents=True)
    tier = directory / "tier"
    session = Session(
        directory,
        directory / "source",
        tiers=[{"mount_point": tier, "max_storage_quota": 64 * MIB}],
    )
    fd = os.open(tier, os.O_RDONLY)
    try:
        with segments(session) as shared:
            shared.set_tiers([SimpleNamespace(fd=fd, copies=tier)])  # type: ignore[list-item]
            yield session
    finally:
        os.close(fd)


def _start(session: Session, program: Path, *words: object) -> subprocess.Popen[bytes]:
    """Starts the program. Its output goes into files, because no thread reads a pipe while the
    program runs, and a full pipe would block the program."""
    with (session.directory / "out").open("w") as out, _error(session).open("w") as error:
        return subprocess.Popen(
            [program, *map(str, words), session.directory],
            env=session.env(preload=False, MONARCH_CONFIG=str(session.config)),
            stdout=out,
            stderr=error,
        )


def _error(session: Session) -> Path:
    return session.directory / "error"


def _await(running: list[subprocess.Popen[bytes]], limit_s: float) -> None:
    """Waits until all processes have ended, or one of them has found a wrong order. Fails after
    `limit_s` [s]."""
    until = time.monotonic() + limit_s
    while any(one.poll() is None for one in running) and not any(one.poll() for one in running):
        assert time.monotonic() < until, f"the orders take more than {limit_s} s"
        time.sleep(LOOK_S)


def explore(
    program: Path,
    directory: Path,
    trial: str,
    interrupts: int,
    *,
    most: int,
    limit_s: float,
    nth: int = 1,
) -> Explored:
    """Runs the trial in all orders with at most `interrupts` interrupts.

    most : the largest number of orders that each process runs
    limit_s : the time within which all processes must have ended [s]
    nth : an order is left out if its first interrupt comes at a decision whose number is not a
        multiple of `nth`
    """
    shares = min(os.cpu_count() or 1, MOST_SHARES)
    found = Explored()
    with ExitStack() as stack:
        sessions = [stack.enter_context(_session(directory / str(i))) for i in range(shares)]
        running = [
            _start(session, program, trial, interrupts, most, i, shares, nth)
            for i, session in enumerate(sessions)
        ]
        try:
            _await(running, limit_s)
        finally:
            # If one process has found a wrong order, or the time limit has passed, other processes
            # still run.
            ended = [one.poll() for one in running]
            for one in running:
                one.kill()
                one.wait()
        for session, status in zip(sessions, ended, strict=True):
            if status == 0:
                found.counts.update(json.loads((session.directory / "out").read_text()))
            elif status is not None and not found.wrong:
                said = with_names(_error(session).read_text(), program)
                found.wrong = said or f"it has ended with {status}"
    return found
