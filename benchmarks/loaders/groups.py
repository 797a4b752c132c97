"""``python -m benchmarks.loaders.groups``: reads groups of samples, with GroupLoader and with h5py.

A group has 609 samples of 19.2 KB, as in the paper of Lee and others. A GroupLoader reads groups
from an HDF5 file on a slow source. The benchmark counts the requests that the source receives for a
group. It compares the time to read a group with the time of h5py, which reads one sample after the
other. It also measures how long a training run waits for groups. There are two cases: computing
takes longer than reading, or reading takes longer than computing. Needs FUSE and h5py.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import h5py
import numpy as np

from benchmarks.common import scratch
from benchmarks.loaders.records import SAMPLE_BYTES, SOURCES, pace, slow_source
from benchmarks.numbers import Result, describe_machine, file_system, report
from monarch_py.demo.slowsource import SlowSource, why_unavailable
from monarch_py.loaders.groups.loader import GroupLoader, GroupTimes
from monarch_py.loaders.groups.runs import RankGroups
from monarch_py.loaders.records.dataset import RecordDataset
from monarch_py.plan.schedule import group_schedule

GROUP, GROUPS, BATCH = 609, 24, 64
REQUEST_BYTES = 128 << 10


def make_dataset(path: Path) -> None:
    rng = np.random.default_rng(20221)
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", (GROUP * GROUPS, SAMPLE_BYTES), dtype="u1")
        for number in range(GROUPS):
            rows = rng.integers(0, 256, (GROUP, SAMPLE_BYTES), dtype=np.uint8)
            made[number * GROUP : (number + 1) * GROUP] = rows


def ranges_of_groups(ranks: int) -> float:
    """Computes, for each rank, the mean number of contiguous ranges of samples that the rank reads
    for a group. Returns the highest of these means."""
    schedule = group_schedule(GROUP * GROUPS, GROUP, 0, 0, ranks, BATCH)
    most = 0.0
    for rank in range(ranks):
        runs = list(RankGroups.of(schedule, rank, GROUP).runs(0))
        ranges = [1 + int((np.diff(run.samples) > 1).sum()) for run in runs]
        most = max(most, statistics.mean(ranges))
    return most


class Groups:
    """Measures a GroupLoader on the slow source. The loader's `collate` is `len`, so that torch is
    not needed."""

    def __init__(self, slow: SlowSource) -> None:
        self._slow, self._path = slow, slow.mountpoint / "train.h5"

    def epoch(self, compute_s: float = 0.0) -> tuple[GroupTimes, float, dict[str, int]]:
        """Runs an epoch. Returns the loader's times, the duration of the epoch [s], and the number
        of requests to the source, by kind.

        compute_s : how long [s] the training run computes for each group
        """
        dataset = RecordDataset(self._path, dataset="x")
        loader = GroupLoader(dataset, BATCH, GROUP, epochs=0, rank=0, world_size=1, collate=len)
        self._slow.reset()
        began = time.perf_counter()
        pause_s, owed_s = compute_s * BATCH / GROUP, 0.0
        for _ in loader:
            owed_s += pause_s
            if owed_s > 0:
                before = time.perf_counter()
                time.sleep(owed_s)
                # A sleep takes longer than requested. So subtract the measured time from the time
                # that the run still has to sleep.
                owed_s -= time.perf_counter() - before
        took_s = time.perf_counter() - began
        loader.close()
        return loader.times, took_s, self._slow.counts()

    def h5py_s(self, samples: int) -> float:
        """Returns the time [s] that h5py needs to read GROUP random samples. Reads only `samples`
        samples, and extrapolates the time."""
        wanted = np.random.default_rng(1).permutation(GROUP * GROUPS)[:samples].tolist()
        with h5py.File(self._path, "r") as file:
            found = file["x"]
            found[0]
            began = time.perf_counter()
            for number in wanted:
                found[number]
            return (time.perf_counter() - began) * GROUP / samples


def requests(groups: Groups) -> list[Result]:
    times, _, counts = groups.epoch()
    least = times.n_bytes / REQUEST_BYTES
    results = [
        Result(
            "requests",
            "GroupLoader: requests to the source / (bytes read / 128 KiB)",
            "ratio",
            counts["read"] / least,
            1.1,
        )
    ]
    for ranks in (1, 2, 3, 8):
        what = f"contiguous ranges per group, on the rank that reads the most (ranks: {ranks})"
        results.append(Result(f"ranges_{ranks}", what, "ranges", ranges_of_groups(ranks), 2))
    return results


def seconds(groups: Groups, name: str, rounds: int) -> Result:
    ratios = []
    for _ in range(rounds):
        theirs = groups.h5py_s(200)
        _, took_s, _ = groups.epoch()
        ratios.append(theirs / (took_s / GROUPS))
        print(
            f"{name}: GroupLoader reads a group in {took_s / GROUPS:.4f} s, h5py in {theirs:.3f} s",
            file=sys.stderr,
        )
    least = {"4 ms": 50, "0.5 ms": 6}[name]
    what = f"latency {name}: time of h5py for a group's samples / time of GroupLoader"
    return Result(f"seconds_{name}", what, "ratio", statistics.median(ratios), least, is_least=True)


def waiting(groups: Groups, name: str, rounds: int) -> tuple[list[Result], list[list[float]]]:
    """Measures how long a training run waits for its groups, except for the first group. There are
    two training runs. For each group, the first run computes twice as long as reading takes, and
    the second run computes about half as long as reading takes.

    Returns the results, and, for each training run, the median times per group for reading,
    computing and waiting [s].
    """
    shares, excesses = [], []
    longer, shorter = [], []
    for _ in range(rounds):
        times, _, _ = groups.epoch()
        reading_s = times.reading_s / GROUPS
        slow, _, _ = groups.epoch(2 * reading_s)
        shares.append(slow.wait_s / (2 * reading_s * (GROUPS - 1)))
        longer.append((slow.reading_s / GROUPS, 2 * reading_s, slow.wait_s / (GROUPS - 1)))
        fast, took_s, _ = groups.epoch(0.4 * reading_s)
        # All time in which the run does not wait counts as computing, even the copying of batches.
        computed_s = (took_s - fast.wait_s - fast.first_wait_s) / GROUPS
        reading_s = fast.reading_s / GROUPS
        print(f"{name}: reading {reading_s:.4f} s, computing {computed_s:.4f} s", file=sys.stderr)
        # On a busy machine, the sleep that replaces the computation may be too long. Then the
        # measured wait of this round is left out.
        if computed_s < 0.75 * reading_s:
            excesses.append(fast.wait_s / (GROUPS - 1) / (reading_s - computed_s))
            shorter.append((reading_s, computed_s, fast.wait_s / (GROUPS - 1)))
    if not excesses:
        raise SystemExit(
            "the machine is too busy: in no round did computing take less than 3/4 of reading"
        )
    medians = [
        [statistics.median(each) for each in zip(*t, strict=True)] for t in (longer, shorter)
    ]
    results = [
        Result(
            f"waiting_{name}",
            f"latency {name}, computing takes twice as long as reading: time waiting / computing",
            "ratio",
            statistics.median(shares),
            0.01,
        ),
        Result(
            f"excess_{name}",
            f"latency {name}, slow reads: time waiting / (time reading - time computing)",
            "ratio",
            statistics.median(excesses),
            1.1,
        ),
    ]
    return results, medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="where scratch files go")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if reason := why_unavailable():
        parser.error(reason)
    with scratch(args.directory) as place, slow_source(place) as slow:
        make_dataset(slow.backing / "train.h5")
        groups = Groups(slow)
        results = requests(groups)
        times = {}
        for name in SOURCES:
            pace(slow, name)
            waits, times[name] = waiting(groups, name, args.rounds)
            results += [seconds(groups, name, args.rounds), *waits]
        document = {
            "benchmark": "loaders.groups",
            "group_s": times,
            "machine": describe_machine(),
            "file_system": file_system(place),
        }
    sys.exit(0 if report(document, results, args.json) else 1)


if __name__ == "__main__":
    main()
