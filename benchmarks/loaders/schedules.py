"""Measures the schedules of samplers: where the samples come from, and what a schedule costs.

    python -m benchmarks.loaders.schedules [--only ROW ...] [--json FILE]

A schedule assigns the samples of an epoch to ranks. The benchmark measures how many samples the
ranks read from other nodes, or must load from the source. It also measures the CPU time and the
memory to compute a schedule. Rows: local, shares, solar, evenly, epoch, resume, loader.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.common import scratch
from benchmarks.numbers import Result, describe_machine, paired, report
from monarch_py.loaders.samplers.held import HeldSampler
from monarch_py.loaders.samplers.local_first import LocalFirstSampler
from monarch_py.loaders.samplers.sampler import ScheduledSampler
from monarch_py.loaders.samplers.solar import SolarSampler
from monarch_py.plan.samplers import NONE, DistributedSampler
from monarch_py.plan.schedule import Deal, EpochSchedule

SAMPLES, SEED = 400_000, 17
# The epoch for which the costs of a schedule are measured: its number of samples, its number of
# ranks, and the number of samples in a rank's batch.
LARGE, RANKS, BATCH = 18_900_000, 32, 64
# The row `loader` measures a DataLoader with WORKERS workers, which reads FILES files in memory, of
# FILE_BYTES bytes each.
FILES, FILE_BYTES, WORKERS, ROUNDS = 1024, 128 << 10, 2, 24


def files(samples: int, spread: int = 0) -> Any:
    sizes = np.random.default_rng(3).integers(100_000 - spread, 100_001 + spread, samples)
    return SimpleNamespace(sizes=sizes)


def loads_of(schedule: EpochSchedule) -> npt.NDArray[np.int64]:
    """Returns the number of samples that each rank must load in each step, (steps, ranks)."""
    assert schedule.loads is not None
    return schedule.loads.reshape(-1, schedule.ranks).astype(np.int64)


# --- savings ------------------------------------------------------------------------------------


def local() -> Iterator[Result]:
    """Counts the samples that ranks read from other nodes, if all nodes together have room for all
    samples. Yields two results: the count relative to the smallest possible count, and relative to
    the number of all samples."""
    sampler = LocalFirstSampler(
        files(SAMPLES), BATCH, SEED, rank=0, world_size=4, ranks_per_node=1, quota="10GB"
    )
    holder = sampler.holders[:, 0]
    schedule = sampler.schedule(1)
    moved = loads_of(schedule).sum(axis=1)
    least = []
    for step in range(schedule.steps):
        held = np.bincount(holder[schedule.step(step)], minlength=4)
        least.append(np.maximum(0, held - schedule.sizes()[step]).sum())
    assert (holder != NONE).all()
    worst = max(float(m / n) for m, n in zip(moved.tolist(), least, strict=True) if n)
    assert all(m == n == 0 for m, n in zip(moved.tolist(), least, strict=True) if not n)
    what = "LocalFirstSampler, worst step: samples from other nodes / smallest possible number"
    yield Result("local-least", what, "ratio", worst, 1.0, rounds=schedule.steps)
    share = float(moved.sum() / len(schedule.samples))
    yield Result(
        "local-share", "  samples from other nodes / all samples of the epoch", "ratio", share, 0.05
    )


def shares() -> Iterator[Result]:
    """Yields, for each sampler, the share of samples that ranks read from other nodes. There are
    four nodes, which together have room for all samples."""
    where: dict[str, Any] = {"rank": 0, "world_size": 4, "ranks_per_node": 1, "quota": "10GB"}
    what = "{}, 4 nodes, batches of 64: samples from other nodes / all samples"
    for kind in (LocalFirstSampler, SolarSampler):
        sampler: HeldSampler = kind(files(SAMPLES), BATCH, SEED, **where)
        schedule = sampler.schedule(1)
        ranks = np.arange(len(schedule.starts) - 1) % schedule.ranks
        taken_by = np.repeat(ranks, np.diff(schedule.starts))
        share = float((sampler.holders[schedule.samples, 0] != taken_by).mean())
        yield Result(f"share-{kind.__name__}", what.format(kind.__name__), "ratio", share, None)
    # DistributedSampler shuffles all samples into one order for all ranks. Rank r takes the samples
    # r, r + 4, r + 8, ... of this order.
    order = DistributedSampler(SAMPLES, 4, SEED).epoch(1)
    share = float((sampler.holders[order, 0] != np.arange(len(order)) % 4).mean())
    name = "DistributedSampler"
    yield Result(f"share-{name}", what.format(name), "ratio", share, None)


def solar() -> Iterator[Result]:
    for part in (0.25, 0.5, 0.8):
        given = files(SAMPLES, 50_000)
        total = int(given.sizes.sum())
        quota = int(part * total / 8)
        sampler = SolarSampler(
            given, BATCH, SEED, rank=0, world_size=8, ranks_per_node=1, quota=quota
        )
        held = int(given.sizes[sampler.holders != NONE].sum())
        what = f"SolarSampler, quotas for {part:.0%} of the bytes: bytes that nodes hold / quotas"
        yield Result(f"solar-held-{part}", what, "ratio", held / (8 * quota), 0.97, is_least=True)
        read = 0
        schedule = sampler.schedule(1)
        loads = loads_of(schedule).ravel().tolist()
        for begin, load in zip(schedule.starts[:-1].tolist(), loads, strict=True):
            # The first samples of a batch are those that the rank must load.
            read += int(given.sizes[schedule.samples[begin : begin + load]].sum())
        what = f"SolarSampler, quotas for {part:.0%}: bytes loaded / bytes that no node holds"
        yield Result(f"solar-source-{part}", what, "ratio", read / (total - held), 1.02)


def evenly() -> Iterator[Result]:
    holder = np.random.default_rng(1).integers(0, 8, SAMPLES).astype(np.int32)
    holder[: SAMPLES // 5] = NONE
    order = np.random.default_rng(2).permutation(SAMPLES).astype(np.int32)
    schedule = Deal(8 * BATCH, 8, 8, 1.5).schedule(order, holder)
    # The steps in which no batch has the largest allowed size. In these steps, all ranks must load
    # almost equally many samples. In other steps, the numbers may differ.
    free = schedule.sizes().max(axis=1) < 1.5 * BATCH
    loads = loads_of(schedule)[free]
    apart = int((loads.max(axis=1) - loads.min(axis=1)).max())
    what = (
        f"SolarSampler, steps in which no batch has the largest size ({free.mean():.1%}): largest"
        " difference between the numbers of samples that two ranks load"
    )
    yield Result("solar-even", what, "", apart, 1, rounds=int(free.sum()))
    equal = loads_of(Deal(8 * BATCH, 8, 8).schedule(order, holder))[:-1]
    ratio = float(np.median(equal.max(axis=1) / equal.mean(axis=1)))
    yield Result(
        "equal-even",
        "equal batches: samples that a step's busiest rank loads / mean of all ranks",
        "ratio",
        ratio,
        None,
    )
    for name, each in (("SolarSampler", loads), ("equal batches", equal)):
        spread = each.max(axis=1) - each.min(axis=1)
        low, middle, high = np.quantile(spread, (0.25, 0.5, 0.75)).tolist()
        what = (
            f"{name}: samples that a step's busiest rank loads, minus those of the least busy rank"
        )
        yield Result(f"spread-{name}", what, "", middle, None, quartiles=(low, high))


# --- costs --------------------------------------------------------------------------------------


def large(kind: type[Any]) -> ScheduledSampler:
    holders = np.random.default_rng(0).integers(0, RANKS, (LARGE, 1), dtype=np.int32)
    sizes = np.broadcast_to(np.int64(1), LARGE)
    made: ScheduledSampler = kind(
        SimpleNamespace(sizes=sizes),
        BATCH,
        SEED,
        rank=3,
        world_size=RANKS,
        ranks_per_node=4,
        holders=holders // 4,
    )
    return made


def in_child(measure: Callable[[type[Any]], tuple[float, float]], kind: type[Any]) -> Any:
    """Runs `measure` in a new process, so that earlier work of this process does not affect the
    measured peak memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (kind,))


def memory() -> float:
    """Returns the peak memory of this process [MiB]."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cost(kind: type[Any]) -> tuple[float, float]:
    """Returns the CPU time [s] to compute one rank's order of an epoch, and the sampler's memory
    [MiB]. The memory includes the table of the nodes that hold each sample. The CPU time does not
    include the time to make this table."""
    before = memory()
    sampler = large(kind)
    began = time.process_time()
    sampler.epoch(1)
    return time.process_time() - began, memory() - before


def resumption(kind: type[Any]) -> tuple[float, float]:
    """Resumes an epoch at several steps. For each step, computes a ratio: the time until the
    resumed epoch's first batch, divided by the time to compute the epoch's schedule. Returns the
    median and the maximum of these ratios."""
    sampler = large(kind)
    ratios = []
    for done in (1, 4000, 9000):
        state = sampler.state_dict(done)
        began = time.perf_counter()
        sampler.load_state_dict(state)
        next(iter(sampler))
        resumed = time.perf_counter() - began
        # Wait for the thread that computes the next epoch's schedule, so that it does not disturb
        # the next measurement.
        for ahead in sampler._ahead.values():
            ahead.result()
        began = time.perf_counter()
        sampler._make(0)
        ratios.append(resumed / (time.perf_counter() - began))
    return float(np.median(ratios)), max(ratios)


def epoch() -> Iterator[Result]:
    for kind in (LocalFirstSampler, SolarSampler):
        seconds, mib = in_child(cost, kind)
        name = kind.__name__.removesuffix("Sampler")
        yield Result(
            f"cpu-{name}",
            f"{name}, 18.9 million samples, 32 ranks: CPU time to compute an epoch's order",
            "s",
            seconds,
            3.0,
        )
        yield Result(
            f"memory-{name}",
            "  memory, including the table of the nodes that hold each sample",
            "MiB",
            mib,
            400,
        )


def resume() -> Iterator[Result]:
    median, _ = in_child(resumption, LocalFirstSampler)
    what = "time to resume an epoch at step 1, 4000 or 9000 / time to schedule it"
    yield Result("resume", what, "ratio", median, 1.1, rounds=3)


class Present:
    """A dataset of files on tmpfs. Each access to a sample opens and reads its file."""

    def __init__(self, root: Path) -> None:
        self.paths = [root / f"{number}" for number in range(FILES)]
        for path in self.paths:
            path.write_bytes(os.urandom(FILE_BYTES))
        self.sizes = np.full(FILES, FILE_BYTES)

    def __len__(self) -> int:
        return FILES

    def __getitem__(self, at: int) -> Any:
        import torch

        return torch.frombuffer(bytearray(self.paths[at].read_bytes()), dtype=torch.uint8)


def cpu_ns() -> float:
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(who) for who in both]
    return 1e9 * sum(each.ru_utime + each.ru_stime for each in used)


def loader() -> Iterator[Result]:
    from torch.utils.data import BatchSampler, DataLoader, Dataset
    from torch.utils.data import DistributedSampler as TorchsSampler

    with scratch(Path("/dev/shm")) as place:
        present = Present(place)
        dataset: Dataset[Any] = present  # type: ignore[assignment]
        theirs: Any = TorchsSampler(dataset, 2, 0, seed=SEED)
        ours = LocalFirstSampler(
            present, BATCH, SEED, rank=0, world_size=2, ranks_per_node=1, quota="1GB"
        )

        def epoch_of(sampler: Any, set_epoch: Callable[[int], None], number: int) -> float:
            set_epoch(number)
            began = cpu_ns()
            taken = sum(
                len(batch)
                for batch in DataLoader(
                    dataset,
                    batch_sampler=sampler,
                    num_workers=WORKERS,
                    multiprocessing_context="fork",
                )
            )
            assert taken == FILES // 2
            return cpu_ns() - began

        pairs = []
        for number in range(ROUNDS + 2):
            first = epoch_of(ours, ours.set_epoch, number)
            second = epoch_of(BatchSampler(theirs, BATCH, False), theirs.set_epoch, number)
            third = epoch_of(ours, ours.set_epoch, number)
            # Monarch's sampler runs before and after torch's, so that the order of the runs gives
            # no sampler an advantage.
            pairs.append(((first + third) / 2, second))
        what = "DataLoader, CPU time per epoch: with LocalFirstSampler / with torch's sampler"
        yield paired("loader", what, pairs[2:], limit=1.02, operations=FILES // 2)


ROWS: dict[str, Callable[[], Iterator[Result]]] = {
    each.__name__: each for each in (local, shares, solar, evenly, epoch, resume, loader)
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loaders.schedules")
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--json", type=Path, dest="json_file", metavar="FILE")
    arguments = parser.parse_args()
    results = [result for row in arguments.only for result in ROWS[row]()]
    document = {"benchmark": "loaders.schedules", "machine": describe_machine()}
    sys.exit(not report(document, results, arguments.json_file))


if __name__ == "__main__":
    main()
