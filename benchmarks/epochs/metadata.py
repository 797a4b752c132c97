"""Counts the operations on names and attributes that reach the source once everything is copied.

A tree of small files, typical of image datasets, lies behind the counting source. A Python program
under the library accesses it in every way that training programs do, epoch after epoch.
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
# The age [s] from which a directory's times are trusted. A younger directory may still change
# without a new timestamp.
SETTLED_S = 4.0
LIMIT_S = 60.0
# How long [s] listings rely on an earlier check of a directory. The benchmark waits this long
# before each epoch, so that no earlier check is still valid when the epoch starts.
LOOK_S = 1.0
# The limit on operations under the library, as a share of those without it. Under the library, the
# kernel still sends a few operations for each directory and its parents, but none for files.
SHARE = 0.01
BYTES = ("bytes_read", "bytes_written")


def make_tree(root: Path) -> int:
    """Writes the tree, and waits until the times of its directories are trusted. Returns the number
    of its files."""
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
    """Runs one epoch. Returns how many items each step found, and for each step, how many
    operations of each kind reached the source."""
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
    """Returns (result, document). The result is the number of operations in the median epoch under
    the library, relative to an epoch without the library. For each step and each kind of operation,
    the document contains the count in the epoch without the library, and the median of the counts
    in the epochs under the library.

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
    """Returns the median count of each kind of operation, without kinds whose median is 0.

    The median leaves out requests by other processes. Other processes make requests because the
    daemon has the source's root open: any process that examines all descriptors of the machine
    requests the attributes of this directory.
    """
    kinds = sorted(set().union(*counts))
    medians = {kind: statistics.median(count[kind] for count in counts) for kind in kinds}
    return {kind: number for kind, number in medians.items() if number}
