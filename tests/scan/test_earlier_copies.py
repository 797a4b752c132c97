"""The copies of an earlier session serve a job from the job's beginning. A scan does not slow down
for the job as long as it finds such copies."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.epoch import make_files
from support.manifests import wait_recorded
from support.session import MIB, Session

from monarch_py.daemon.scan.scanner import MISSES, Scanner
from monarch_py.demo.slowsource import SlowSource

FILES = 400
READ = """
import random, sys
paths = [f"{sys.argv[1]}/{seed}" for seed in range(1, int(sys.argv[2]) + 1)]
for epoch in range(2):
    random.Random(epoch).shuffle(paths)
    for path in paths:
        with open(path, "rb", buffering=0) as file: file.read()
"""


def fill(session: Session) -> None:
    session.start()
    assert session.monarch("warm").returncode == 0
    wait_recorded(session, FILES)
    session.stop()


def second_job(session: Session, root: Path, report: Path) -> dict[str, Any]:
    """Returns the report of a job of two epochs."""
    words = ["run", "-q", "--json", str(report), "--", sys.executable, "-c", READ]
    assert session.monarch(*words, str(root), str(FILES)).returncode == 0
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def tier(path: Path) -> dict[str, object]:
    path.mkdir()
    return {"mount_point": path, "max_storage_quota": 64 * MIB, "persistent": True}


@pytest.mark.usefixtures("alone")
def test_a_second_job_hardly_opens_a_slow_source(
    session_factory: Callable[..., Session],
    slow_factory: Callable[..., SlowSource],
    tmp_path: Path,
) -> None:
    source = slow_factory(keep_pages=True)
    make_files(source.backing, FILES, 20_000)
    session = session_factory(source.mountpoint, tiers=[tier(tmp_path / "ssd")], prefetch="auto")
    fill(session)
    source.latency(open=0.001, read=0.001, getattr=0.0002)
    source.reset()
    report = second_job(session, source.mountpoint, tmp_path / "report.json")
    counts, totals = source.counts(), report["totals"]
    assert totals["hits"] + totals["misses"] == 2 * FILES
    assert totals["misses"] <= FILES // 10
    assert counts["open"] <= FILES // 10
    assert report["sources"][0]["present"] == FILES


@pytest.mark.usefixtures("alone")
def test_a_second_job_hardly_opens_a_fast_source(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    make_files(tmp_path / "source", FILES, 20_000)
    session = session_factory(tmp_path / "source", tiers=[tier(tmp_path / "ssd")], prefetch="auto")
    fill(session)
    # A job of two epochs takes only tens of milliseconds. A busy processor may delay the scan by
    # tens of milliseconds too. So it is enough that one of several jobs has the expected hits.
    for _ in range(12):
        report = second_job(session, tmp_path / "source", tmp_path / "report.json")
        if report["totals"]["hits"] >= FILES:
            break
    assert report["totals"]["hits"] >= FILES
    assert report["sources"][0]["present"] == FILES


@pytest.mark.parametrize(
    ("left", "compared", "matched", "expected"),
    [
        (0, 0, 0, False),  # there are no copies
        (5, 0, 0, True),  # nothing was looked at
        (5, MISSES, 0, True),
        (5, MISSES + 1, 0, False),  # most files have no copy
        (5, 10 * MISSES, 5 * MISSES, True),
        (5, 10 * MISSES, 4 * MISSES, False),
        (0, 10 * MISSES, 10 * MISSES, False),  # all were found
    ],
)
def test_the_scan_goes_on_while_copies_are_found(
    left: int, compared: int, matched: int, expected: bool
) -> None:
    scanner: Any = SimpleNamespace(
        validators=[SimpleNamespace(left=0), SimpleNamespace(left=left)],
        _compared=compared,
        _matched=matched,
    )
    found: Any = Scanner.finds_copies
    assert found.fget(scanner) is expected
