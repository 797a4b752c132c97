"""Configurations whose file systems are known to answer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

from monarch_py.config import load


@contextmanager
def all_answer() -> Iterator[None]:
    """Has `load_config` ask file systems in this process. Otherwise it forks a process for each
    path, and a fork of a test's process, which has loaded torch, takes longer than all else.
    tests/failures/test_source_hangs.py is about file systems that do not answer."""
    with mock.patch.object(load, "hanging", _asked_here):
        yield


def _asked_here(paths: Sequence[Path]) -> list[Path]:
    for path in paths:
        with suppress(OSError):
            os.stat(path)
            os.statvfs(path)
    return []
