"""The daemon runs no more copying threads than it needs, and idle threads hold no memory for
buffers."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.epoch import make_files
from support.session import MIB, Session, wait_until

from monarch_py.daemon.copies.concurrency import FIRST
from monarch_py.demo.slowsource import SlowSource

Factory = Callable[..., Session]
MANY = 48  # less than the number of requests that the source serves at a time


def process_of(session: Session) -> psutil.Process:
    return psutil.Process(int(session.status()["pid"]))


@pytest.mark.parametrize(
    ("settings", "in_flight"),
    [
        ({"min_reads": 5, "shared_tpool_size": 6}, 6),
        ({"shared_tpool_size": 2}, 2),
        ({}, FIRST),
        ({"min_reads": MANY}, MANY),
    ],
)
def test_so_many_reads_are_in_flight_at_first(
    session_factory: Factory,
    slow_factory: Callable[..., SlowSource],
    settings: dict[str, Any],
    in_flight: int,
) -> None:
    """While the source has served nothing and no reader waits for fills, `in_flight` fills read at
    the same time. No more threads run than these fills need."""
    source = slow_factory()
    make_files(source.backing, 2 * MANY, 1000)
    source.latency(read=3600)
    try:
        session = session_factory(source.mountpoint, prefetch="eager", **settings)
        session.start()
        process = process_of(session)
        wait_until(lambda: source.counts()["read"] == in_flight, what=f"{in_flight} reads")
        session.wait_scanned()
        others = wait_until(
            lambda: (n := process.num_threads()) <= in_flight + 16 and n, what="no other threads"
        )
        assert others >= in_flight
        assert source.counts()["read"] == in_flight
    finally:
        source.latency(read=0)


def test_threads_without_work_give_their_memory_back(
    session_factory: Factory, slow_factory: Callable[..., SlowSource]
) -> None:
    source = slow_factory()
    make_files(source.backing, MANY, MIB)
    source.latency(read=3600)
    settings = {"min_reads": MANY, "prefetch": "eager"}
    session = session_factory(source.mountpoint, **settings).start()
    process = process_of(session)
    idle = process.memory_info().rss
    try:
        wait_until(lambda: source.counts()["read"] >= MANY, what="a read by each thread")
    finally:
        source.latency(read=0)
    session.wait_idle()
    wait_until(
        lambda: process.memory_info().rss < idle + 24 * MIB, what="the memory of the buffers"
    )


def test_where_no_more_threads_can_be_started_the_others_do_the_work(
    session_factory: Factory, slow_factory: Callable[..., SlowSource]
) -> None:
    """Each thread takes more than 1 MiB of address space. A limit on the address space prevents the
    daemon from starting all the threads that it wants. The threads that have started must
    nevertheless begin fills, until all files have copies."""
    # With `keep_pages`, an open of a file does not wait until a fill's read of the file has ended.
    source = slow_factory(keep_pages=True)
    make_files(source.backing, 2 * MANY, 1000)
    session = session_factory(source.mountpoint, min_reads=MANY).start()
    session.wait_scanned()
    process = process_of(session)
    _, hard = process.rlimit(resource.RLIMIT_AS)
    process.rlimit(resource.RLIMIT_AS, (process.memory_info().vms + 30 * MIB, hard))
    source.latency(read=3600)
    try:
        session.want_all()
        wait_until(
            lambda: source.counts()["read"] >= 8, what="reads by all threads that could start"
        )
        process.rlimit(resource.RLIMIT_AS, (hard, hard))
        assert source.counts()["read"] < MANY
    finally:
        source.latency(read=0)
    session.wait_all_present()


def test_all_threads_have_batch_scheduling_short_slices_and_the_commands_priority(
    session_factory: Factory, tmp_path: Path
) -> None:
    own = Path("/proc/self/sched")
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    is_new = release is not None and (int(release[1]), int(release[2])) >= (6, 12)
    if not is_new or not own.exists() or "se.slice" not in own.read_text():
        pytest.skip("the kernel does not say how long time slices are")
    make_files(tmp_path / "source", 4, 1000)
    process = process_of(session_factory(tmp_path / "source").start())
    slices_ns, policies = set(), set()
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # some threads end meanwhile
            slices_ns |= set(
                re.findall(r"^se\.slice +: +(\d+)$", (task / "sched").read_text(), re.M)
            )
            policies.add(os.sched_getscheduler(int(task.name)))
    assert slices_ns == {"100000"}
    assert policies == {os.SCHED_BATCH}
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0)
