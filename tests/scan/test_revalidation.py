"""Tests of when directories are compared with the source again."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from monarch_py.arrays import ENTRY
from monarch_py.daemon.scan.revalidation import YOUNG_S, Metadata
from monarch_py.ipc.catalog import Catalog
from monarch_py.ipc.session import SessionDir
from monarch_py.native import Kind, ffi


@pytest.mark.parametrize("answer", ["hits", "metadata_hits"])
def test_an_open_that_finds_no_copy_makes_no_comparison_due(answer: str) -> None:
    """The daemon compares the catalog with the source when a comparison is due. If programs only
    open files that have no copy, no comparison becomes due, because the source itself answers these
    opens. A comparison becomes due after an open of a copy, or an answer from the catalog, because
    these rely on what the catalog says."""
    totals = {"hits": 0, "misses": 0, "opens": 0, "metadata_hits": 0}
    config: Any = SimpleNamespace(metadata="cached", revalidate_s=1)
    shared: Any = SimpleNamespace(totals=lambda: totals, clients=SimpleNamespace(stale=0))
    metadata = Metadata(config, shared, None)  # type: ignore[arg-type]
    totals.update(opens=5, misses=5)
    assert not metadata._is_due()
    totals[answer] += 1
    assert metadata._is_due()


def test_only_young_directories_wait_for_their_listing(tmp_path: Path) -> None:
    """A directory that changed just before the scan is young: it may change again without a new
    timestamp. After the scan, all directories but the young ones get a listing."""
    catalog = Catalog(SessionDir(tmp_path), ffi.new("uint64_t *"))
    entries = np.zeros(3, dtype=ENTRY)
    entries["path"], entries["path_len"] = range(3), 1
    # A `sum` of 1 says that a directory contains no names.
    entries["ino"], entries["kind"], entries["sum"] = range(1, 4), Kind.DIR, 1
    age = int(2 * YOUNG_S * 1e9)
    entries["mtime_ns"] = time.time_ns() - np.array([age, 0, age])
    entries["ctime_ns"] = time.time_ns() - np.array([age, 0, 0])
    catalog.add(entries, ffi.new("char[]", b"abc"))
    source = SimpleNamespace(number=0, up_ino=0)
    scanner: Any = SimpleNamespace(sources=[source], began=time.monotonic())
    shared: Any = SimpleNamespace(catalog=catalog, control=ffi.new("struct monarch_control *"))
    metadata = Metadata(None, shared, scanner)  # type: ignore[arg-type]
    metadata._list()
    assert (catalog.entries["copy_ino"] != 0).tolist() == [True, False, False]
    assert metadata._young == [1, 2]
