"""Counts how many operations on names and attributes reach the source if all files have copies.

The dataset is a tree of small files, as in image datasets. In each epoch, a Python program
(walker.py) accesses the names and attributes of the dataset as training programs do. The first
epoch runs without the preload library, the others run with it. The source counts the operations.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.common import Child, Daemon, plain_environment
from benchmarks.epochs.walker import STEPS
from benchmarks.numbers import Result
from monarch_py.demo.slowsource import SlowSource

__all__ = ["count_metadata", "make_tree"]

WALKER = Path(__file__).with_name("walker.py")
CLASSES, FILES_A_CLASS, FILE_BYTES = 10, 50, 4096
QUOTA_BYTES = 64 << 20
# Monarch trusts the timestamps of a directory only if the directory has not changed for this long
# [s]. A directory that has just changed could change again without a new timestamp.
SETTLED_S = 4.0
LIMIT_S = 60.0
# After the library has checked a directory, it does not check the directory again for this long
# [s] when it lists the directory. The benchmark waits this long before each epoch. So the library
# checks the directories in every epoch.
LOOK_S = 1.0
# The limit on the result: the number of operations at the source with the library, divided by the
# number without the library. With the library, the kernel sends a few operations for each directory
# and its parents, but none for files.
SHARE = 0.01
BYTES = ("bytes_read", "bytes_written")


def make_tree(root: Path) -> int:
    """Writes the tree, and waits until Monarch trusts the timestamps of the directories. Returns
    the number of files in the tree."""
    for number in range(CLASSES):
        directory = root / "train" / f"class{number:02d}"
        directory.mkdir(parents=True)
        for image in range(FILES_A_CLASS):
            (directory / f"image{image:04d}.jpg").write_bytes(os.urandom(FILE_BYTES))
    (root / "labels.txt").write_text("".join(f"class{n:02d}\n" for n in range(CLASSES)))
    (root / "first").symlink_to("train/class00")
    (root / "labels").symlink_to("labels.txt")
    time.sleep(SETTLED_S)
    return CLASSES * FILES_A_CLASS + 1


def _walker(slow: SlowSource, environment: dict[str, str]) -> Child:
    return Child([sys.executable, WALKER, slow.mountpoint], environment)


def _epoch(walker: Child, slow: SlowSource) -> tuple[list[int], dict[str, Counter[str]]]:
    """Runs one epoch. Returns the number of items that each step found. Also returns, for each
    step, the number of operations of each kind that reached the source."""
    met, reached = [], {}
    for step in STEPS:
        before = Counter(slow.counts())
        met += walker.ask(step)
        operations = Counter(slow.counts()) - before
        reached[step] = Counter({k: n for k, n in operations.items() if k not in BYTES})
    return met, reached


def count_metadata(
    slow: SlowSource, place: Path, tier: Path, files: int, epochs: int
) -> tuple[Result, dict[str, Any]]:
    """Measures an epoch without the library, and several epochs with the library. Returns a Result
    and a document for the JSON. The Result is the median number of operations in an epoch with the
    library, divided by the number in the epoch without the library. The document contains these two
    numbers for each step and each kind of operation.

    files : the number of files in the tree behind `slow`
    """
    with _walker(slow, plain_environment()) as walker:
        expected, without = _epoch(walker, slow)
    with Daemon(place, slow.mountpoint, tier, QUOTA_BYTES) as daemon:
        daemon.wait_scanned(LIMIT_S)
        with _walker(slow, daemon.environment()) as walker:
            _epoch(walker, slow)
            daemon.wait_present(files, LIMIT_S)
            later = []
            for _ in range(epochs):
                time.sleep(LOOK_S)
                later.append(_epoch(walker, slow))
    if any(met != expected for met, _ in later):
        raise RuntimeError("an epoch under the library found other items than one without it")
    steps = {step: _median([reached[step] for _, reached in later]) for step in STEPS}
    total = statistics.median(sum(n.total() for n in reached.values()) for _, reached in later)
    share = total / sum(counts.total() for counts in without.values())
    what = "operations at the source in an epoch of names and attributes"
    document = {
        "epochs": epochs,
        "files": files,
        "without": {step: dict(counts) for step, counts in without.items()},
        "later": steps,
    }
    print(f"  {what}: {total:g}, {steps}", file=sys.stderr)
    what += " / in one without the library"
    return Result("metadata_operations", what, "ratio", share, SHARE), document


def _median(counts: list[Counter[str]]) -> dict[str, float]:
    """Returns the median count of each kind of operation. Leaves out kinds with a median of 0.

    The median removes the effect of occasional requests by other processes. The daemon has opened
    the root directory of the source. So any process that examines all descriptors on the machine
    requests the attributes of this directory.
    """
    kinds = sorted(set().union(*counts))
    medians = {kind: statistics.median(count[kind] for count in counts) for kind in kinds}
    return {kind: number for kind, number in medians.items() if number}
