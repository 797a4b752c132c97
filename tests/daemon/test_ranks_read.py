"""The ranks of a node share the rate of the source. If a rank finds no copies for twice as many
bytes as another rank, it gets twice the other rank's rate."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.draws import cases, sized
from support.epoch import Reader, content, make_files
from support.session import MIB, Session, wait_until

from monarch_py.demo.slowsource import SlowSource
from monarch_py.ipc import word
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.ipc.session import Segment
from monarch_py.native import State, ffi, lib
from monarch_py.plan import Loader, Plan, PlanPart
from monarch_py.plan.index import Index
from monarch_py.plan.samplers import DistributedSampler

KIB, UNIT = 1 << 10, 256 << 10
SIZE, FILES, THREADS = 64 * KIB, 240, 8
RATE = sized(20e6, 10e6)
# For each of two ranks: how many of the files that the rank reads have no copy.
MISSED = (30, 210)
# How many small files each of two ranks demands at the same time.
DEMANDED = 40


# --- whose demands the engine serves first ------------------------------------------------------


class Demands:
    """Demands of the readers of two ranks. A test writes them into shared memory as readers do, but
    does not wait for answers. All demands are in the table before the engine serves the first one,
    so the engine alone determines the order, however busy the machine is."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.segment = Segment.open(session.paths.clients, writable=True)
        self.clients: Any = self.segment.as_struct("struct monarch_clients")

    def opens(self) -> None:
        """Changes the counters of two ranks as if each rank had opened another MIB bytes. The first
        rank has found copies of all these bytes, and the second rank has found copies of none."""
        for rank, missed in ((1, 0), (2, MIB)):
            self.clients.rank[rank].opened_bytes += MIB
            self.clients.rank[rank].missed_bytes += missed

    def shares(self) -> list[float]:
        self.opens()
        return [each["share"] for each in self.session.status()["ranks"]]

    def demand(self, entries: list[list[int]]) -> None:
        """Demands files for several ranks. In the table of demands, the ranks alternate.

        entries : for each rank, the entries of its files"""
        for entry in chain(*entries):
            lib.monarch_want_file(self.clients, entry)
        lib.monarch_ring_doorbell(self.clients)
        for rank, of_rank in enumerate(entries, 1):
            for n, entry in enumerate(of_rank):
                self.clients.demand[2 * n + rank] = rank << 57 | (entry + 1) << 32 | 1


def copied(tier: Path) -> list[int]:
    """Returns the numbers of the files that have a copy. The file with the oldest copy is first."""
    number_of = {content(number, 8): number for number in range(1, 2 * DEMANDED + 1)}
    copies = sorted(tier.glob("monarch-*/c/*"), key=lambda copy: copy.stat().st_mtime_ns)
    return [number_of[copy.read_bytes()[:8]] for copy in copies]


@pytest.mark.parametrize("is_on", [True, False])
def test_who_misses_more_is_served_more_often(
    session_factory: Callable[..., Session],
    slow_factory: Callable[..., SlowSource],
    is_on: bool,
) -> None:
    source = slow_factory()
    make_files(source.backing, 2 * DEMANDED, 4 * KIB)
    session = session_factory(
        source.mountpoint, balance_ranks=is_on, shared_tpool_size=1, min_reads=1
    ).start()
    session.wait_scanned()
    catalog = CatalogReader.open(session.paths, session.connection.ask("where")["generation"])
    ranks = [range(1, DEMANDED + 1), range(DEMANDED + 1, 2 * DEMANDED + 1)]
    demands = Demands(session)
    source.latency(read=3600)
    try:
        demands.demand([[catalog.find(0, str(number)) for number in of] for of in ranks])
        wait_until(
            lambda: session.status()["sources"][0]["filling"] == 2 * DEMANDED, what="all orders"
        )
        wait_until(
            lambda: (
                [round(share, 1) for share in demands.shares()] == ([0.1, 0.9] if is_on else [0, 0])
            ),
            what="the shares",
        )
    finally:
        # Each read takes longer than the resolution of timestamps in the copies' file system. So
        # the timestamps of the copies show their order.
        source.latency(read=0.01)
    wait_until(
        lambda: demands.shares() and session.status()["sources"][0]["present"] == 2 * DEMANDED,
        what="all copies",
    )
    # The fill of the first copy was held back, so the first copy does not count. The next DEMANDED
    # copies show which rank's files were filled first.
    first = copied(session.tiers[0])[1 : DEMANDED + 1]
    of_many = sum(number in ranks[1] for number in first)
    if is_on:  # the second rank gets eight of nine turns
        assert of_many >= 0.8 * DEMANDED, first
    else:
        assert abs(of_many - DEMANDED / 2) <= 1, first


# --- the rank whose files are filled ahead ------------------------------------------------------


class Progress:
    """Counts the units of a file that the engine has filled."""

    def __init__(self, session: Session, catalog: CatalogReader) -> None:
        self.catalog = catalog
        self.segment = Segment.open(session.paths.fills, writable=False)
        self.fills: Any = self.segment.as_struct("struct monarch_fills")

    def units(self, entry: int, of: int) -> int:
        found = int(self.catalog.words[entry])
        if word.state(np.uint64(found)) == State.PRESENT:
            return of
        slots = [slot for slot, each in enumerate(self.fills.word) if each == found]
        return sum(self.fills.fill[slot].done[0].bit_count() for slot in slots)


@pytest.mark.parametrize("is_on", cases([True, False], short=[True]))
def test_who_misses_more_has_more_filled_ahead(
    session_factory: Callable[..., Session],
    slow_factory: Callable[..., SlowSource],
    is_on: bool,
) -> None:
    """One reader of each rank waits for the first unit of a large file. No other unit is demanded,
    so the engine fills all others ahead of the readers."""
    source, units = slow_factory(), sized(40, 60)
    make_files(source.backing, 2, units * UNIT)
    session = session_factory(
        source.mountpoint, balance_ranks=is_on, shared_tpool_size=1, min_reads=1
    ).start()
    session.wait_scanned()
    catalog = CatalogReader.open(session.paths, session.connection.ask("where")["generation"])
    few, many = (catalog.find(0, str(number)) for number in (1, 2))
    demands, progress = Demands(session), Progress(session, catalog)
    source.latency(read=3600)
    lead = 0
    try:
        demands.demand([[few], [many]])
        wait_until(lambda: session.status()["sources"][0]["filling"] == 2, what="both orders")
        wait_until(
            lambda: (
                [round(share, 1) for share in demands.shares()] == ([0.1, 0.9] if is_on else [0, 0])
            ),
            what="the shares",
        )
        source.latency(read=0.01)

        def are_filled() -> bool:
            nonlocal lead
            of_few, of_many = (progress.units(entry, units) for entry in (few, many))
            lead = max(lead, of_many - of_few)
            demands.opens()
            return of_few == of_many == units

        wait_until(are_filled, what="both copies")
    finally:
        source.latency(read=0)
    if is_on:  # of every eight units, seven are filled for the second rank
        assert lead >= units / 2
    else:
        assert lead <= 4


# --- ranks that read ----------------------------------------------------------------------------


def orders(absent: list[int], present: list[int]) -> list[list[int]]:
    """Returns the files that each rank reads. All ranks read the same number of files. Files with
    and without copies are mixed evenly."""
    found = []
    for missed in MISSED:
        mine = [*absent[:missed], *present[: FILES - missed]]
        absent, present = absent[missed:], present[FILES - missed :]
        found.append(sorted(mine, key=lambda n: n * 2654435761 % (1 << 32)))
    return found


def read(
    session: Session, program: Path, source: SlowSource, ranks: list[list[int]]
) -> tuple[set[int], list[float]]:
    """Runs one reader per rank, all at the same time. The readers compare every byte. The source
    serves no read before every rank has demanded a file. The pages of the source's files stay in
    the page cache; otherwise opens would wait in the kernel for the reads of fills.

    Returns the set of ranks whose demands were seen, numbered as in the table of demands (0 means
    no rank). Also returns a list of two numbers about the `share` that `monarch status` reports for
    each rank during the run: the largest sum of all ranks' shares, and the largest share of a
    single rank.
    """
    segment = Segment.open(session.paths.clients, writable=False)
    demands = np.frombuffer(
        segment.memory,
        dtype=np.uint64,
        count=lib.MONARCH_DEMANDS,
        offset=ffi.offsetof("struct monarch_clients", "demand"),
    )
    seen: set[int] = set()
    together, alone = 0.0, 0.0
    with ExitStack() as stack:
        readers = [
            stack.enter_context(
                Reader(
                    program,
                    session,
                    "read",
                    SIZE,
                    THREADS,
                    source.mountpoint,
                    files,
                    LOCAL_RANK=str(rank),
                )
            )
            for rank, files in enumerate(ranks)
        ]
        stack.callback(source.latency, read=0)
        while any(reader.runs() for reader in readers):
            standing = demands.copy()
            seen.update((standing[standing != 0] >> np.uint64(57)).tolist())
            told = session.status()["ranks"]
            if seen >= set(range(1, len(ranks) + 1)):
                source.latency(read=0)
            shares = [each["share"] for each in told]
            together, alone = max(together, sum(shares)), max(alone, *shares, 0)
            time.sleep(0.005)
        for reader in readers:
            assert reader.end()["bytes"] == FILES * SIZE
    return seen, [together, alone]


def test_ranks_that_miss_unequally(
    session_factory: Callable[..., Session],
    slow_factory: Callable[..., SlowSource],
    epoch_reader: Path,
) -> None:
    source = slow_factory(keep_pages=True)
    all_files = list(make_files(source.backing, 2 * FILES, SIZE))
    session = session_factory(source.mountpoint, handover_size=0).start()
    session.wait_scanned()
    # The source is so slow that readers wait for copies of its files. No reader would wait for
    # copies of a fast source's files.
    source.latency(read=0.001)
    absent, present = all_files[: sum(MISSED)], all_files[sum(MISSED) :]
    with Reader(epoch_reader, session, "read", SIZE, 4, source.mountpoint, present) as reader:
        reader.end()
    session.wait_idle()
    source.rate(RATE)
    source.latency(read=3600)
    demanding, shares = read(session, epoch_reader, source, orders(absent, present))
    assert demanding == {1, 2}
    assert shares[0] == pytest.approx(1) and 0.5 < shares[1] < 1
    said = session.status()
    ranks = said["ranks"]
    assert [each["rank"] for each in ranks] == [0, 1]
    assert [each["opened_bytes"] for each in ranks] == [FILES * SIZE] * 2
    assert [each["missed_bytes"] for each in ranks] == [missed * SIZE for missed in MISSED]
    assert said["totals"]["source_bytes_read_by_fills"] == 2 * FILES * SIZE


def test_ranks_that_a_plan_knows(
    session_factory: Callable[..., Session],
    slow_factory: Callable[..., SlowSource],
    epoch_reader: Path,
    tmp_path: Path,
) -> None:
    """The ranks read as fast as they can, so they wait for the files that the daemon fetches ahead
    by the plan. Each rank's share of the source's rate is the one that the plan predicts."""
    source = slow_factory(keep_pages=True)
    made = make_files(source.backing, 2 * FILES, SIZE)
    numbers = {str(number): number for number in made}
    names = sorted(numbers)
    index = Index.of("files", source.mountpoint, names, [SIZE] * len(names))
    sampler = DistributedSampler(len(names), 2, seed=5)
    parts = (PlanPart("training", 0, Loader(sampler, 2, 8, workers=THREADS)),)
    Plan((index,), parts, 1, 1).save(tmp_path / "plan.npz")
    plan = str(tmp_path / "plan.npz")
    session = session_factory(source.mountpoint, plan=plan, handover_size=0)
    source.rate(RATE)
    source.latency(read=3600)
    session.start()
    session.wait_scanned()
    wait_until(lambda: session.status()["plans"][0]["state"] == "following", what="the plan")
    order = [numbers[names[file]] for file in sampler.epoch(0)]
    _, shares = read(session, epoch_reader, source, [order[rank::2] for rank in range(2)])
    assert shares[0] == pytest.approx(1)
    said = session.status()
    assert said["plans"][0]["state"] == "following", said["plans"]
    assert [each["opened_bytes"] for each in said["ranks"]] == [FILES * SIZE] * 2
    assert all(each["missed_bytes"] for each in said["ranks"])
    totals = session.wait_idle()["totals"]
    assert totals["source_bytes_read_by_fills"] == 2 * FILES * SIZE


NUMBERED = {
    4: {"LOCAL_RANK": "4"},
    0: {"OMPI_COMM_WORLD_LOCAL_RANK": "0"},
    126: {"SLURM_LOCALID": "126"},
    # If several launchers have set variables, those of the innermost launcher decide.
    7: {"SLURM_LOCALID": "1", "MPI_LOCALRANKID": "2", "LOCAL_RANK": "7"},
    2: {"LOCAL_RANK": "", "SLURM_LOCALID": "2"},
}
NOT_NUMBERED: list[dict[str, str]] = [
    {},
    {"LOCAL_RANK": "127"},
    {"LOCAL_RANK": "-1"},
    {"LOCAL_RANK": "1x"},
    {"LOCAL_RANK": "99999999999999999999", "SLURM_LOCALID": "3"},
]
# Reads by a rank's worker processes count as reads by the rank. One worker is forked, and the other
# worker runs a different program.
READ = """
import os, subprocess, sys
own, forked, program = sys.argv[1:]
open(own, "rb").read()
if not os.fork():
    open(forked, "rb").read()
    os._exit(0)
os.wait()
subprocess.run(["cat", program], stdout=subprocess.DEVNULL, check=True)
"""


def test_how_launchers_number_ranks(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    sizes = {name: 100 * n for n, name in enumerate(("own", "forked", "program"), 1)}
    for name, size in sizes.items():
        (source / name).write_bytes(b"x" * size)
    session = session_factory(source).start()
    session.wait_scanned()
    words = [sys.executable, "-I", "-S", "-c", READ, *(str(source / name) for name in sizes)]
    for variables in (*NUMBERED.values(), *NOT_NUMBERED):
        done = session.run(words, env=variables)
        assert done.returncode == 0, done.stderr
    said = {each["rank"]: each["opened_bytes"] for each in session.status()["ranks"]}
    assert said == dict.fromkeys(NUMBERED, sum(sizes.values()))
