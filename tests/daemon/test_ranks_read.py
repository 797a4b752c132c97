"""Ranks of one node that miss unequally share what the source gives by what they miss."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.epoch import Reader, make_files
from support.session import Session, wait_until

from monarch_py.demo.slowsource import SlowSource
from monarch_py.plan import Loader, Plan, PlanPart
from monarch_py.plan.index import Index
from monarch_py.plan.samplers import DistributedSampler

KIB = 1 << 10
SIZE, FILES, THREADS = 64 * KIB, 240, 8
# Of what each of two ranks reads so many files have no copy.
MISSED = (30, 210)
RATE = 5e6


def orders(absent: list[int], present: list[int]) -> list[list[int]]:
    """For each rank as many files, evenly mixed."""
    found = []
    for missed in MISSED:
        mine = [*absent[:missed], *present[: FILES - missed]]
        absent, present = absent[missed:], present[FILES - missed :]
        found.append(sorted(mine, key=lambda n: n * 2654435761 % (1 << 32)))
    return found


def read(
    session: Session, program: Path, source: SlowSource, ranks: list[list[int]]
) -> list[dict[str, Any]]:
    """All ranks at a time; no byte is wrong. Returns what the daemon said of them when the first
    had ended."""
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
        wait_until(
            lambda: not all(reader.runs() for reader in readers),
            timeout=60,
            what="the end of a rank",
            every=0.005,
        )
        said: list[dict[str, Any]] = session.status()["ranks"]
        for reader in readers:
            assert reader.end()["bytes"] == FILES * SIZE
    return said


@pytest.mark.parametrize("is_on", [True, False])
def test_who_misses_more_gets_more(
    session_factory: Callable[..., Session],
    slow_factory: Callable[..., SlowSource],
    epoch_reader: Path,
    is_on: bool,
) -> None:
    source = slow_factory()
    all_files = list(make_files(source.backing, 2 * FILES, SIZE))
    session = session_factory(source.mountpoint, balance_ranks=is_on).start()
    session.wait_scanned()
    absent, present = all_files[: sum(MISSED)], all_files[sum(MISSED) :]
    with Reader(epoch_reader, session, "read", SIZE, 4, source.mountpoint, present) as reader:
        reader.end()
    session.wait_idle()
    source.rate(RATE)
    source.reset()
    few, many = read(session, epoch_reader, source, orders(absent, present))
    # With as many turns for both, the one is done when the other has as many files of those that it
    # misses. With shares by their misses, from when these are known on, both end together.
    assert few["opened_bytes"] == FILES * SIZE
    assert (many["opened_bytes"] > 0.55 * FILES * SIZE) == is_on
    said = session.status()["ranks"]
    assert [each["rank"] for each in said] == [0, 1]
    assert [each["opened_bytes"] for each in said] == [FILES * SIZE] * 2
    assert [each["missed_bytes"] for each in said] == [missed * SIZE for missed in MISSED]
    assert sum(each["share"] for each in said) == pytest.approx(1 if is_on else 0)
    assert source.counts()["bytes_read"] <= 1.02 * sum(MISSED) * SIZE


def test_ranks_that_a_plan_knows(
    session_factory: Callable[..., Session],
    slow_factory: Callable[..., SlowSource],
    epoch_reader: Path,
    tmp_path: Path,
) -> None:
    """As fast as they can, so that they wait for what is fetched ahead of them."""
    source = slow_factory()
    made = make_files(source.backing, 2 * FILES, SIZE)
    numbers = {str(number): number for number in made}
    names = sorted(numbers)
    index = Index.of("files", source.mountpoint, names, [SIZE] * len(names))
    sampler = DistributedSampler(len(names), 2, seed=5)
    parts = (PlanPart("training", 0, Loader(sampler, 2, 8, workers=THREADS)),)
    Plan((index,), parts, 1, 1).save(tmp_path / "plan.npz")
    session = session_factory(source.mountpoint, plan=str(tmp_path / "plan.npz"))
    source.rate(2 * RATE)
    session.start()
    session.wait_scanned()
    wait_until(lambda: session.status()["plans"][0]["state"] == "following", what="the plan")
    order = [numbers[names[file]] for file in sampler.epoch(0)]
    read(session, epoch_reader, source, [order[rank::2] for rank in range(2)])
    said = session.status()
    assert said["plans"][0]["state"] == "following", said["plans"]
    assert [each["opened_bytes"] for each in said["ranks"]] == [FILES * SIZE] * 2
    assert sum(each["missed_bytes"] for each in said["ranks"]) > 0
    assert sum(each["share"] for each in said["ranks"]) == pytest.approx(1)
    session.wait_idle()
    assert source.counts()["bytes_read"] <= 1.02 * 2 * FILES * SIZE


NUMBERED = {
    4: {"LOCAL_RANK": "4"},
    0: {"OMPI_COMM_WORLD_LOCAL_RANK": "0"},
    126: {"SLURM_LOCALID": "126"},
    # The innermost launcher's.
    7: {"SLURM_LOCALID": "1", "MPI_LOCALRANKID": "2", "LOCAL_RANK": "7"},
}
NOT_NUMBERED: list[dict[str, str]] = [
    {},
    {"LOCAL_RANK": "127"},
    {"LOCAL_RANK": "-1"},
    {"LOCAL_RANK": "1x"},
    {"LOCAL_RANK": "99999999999999999999", "SLURM_LOCALID": "3"},
]
# A rank's workers are of it: one that is forked, one that is another program.
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
