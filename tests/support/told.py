"""Waits until listings of directories are answered from the catalog instead of the source."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from support.session import Session, wait_until

_LIST = """
import os, sys
for directory in sys.stdin.buffer.read().split(b"\\0"):
    os.listdir(directory)
"""


def directories(root: Path) -> list[bytes]:
    """Returns every directory of a tree, including its root. The tree must contain no mount
    points."""
    return [folder for folder, _, _ in os.walk(os.fsencode(root))]


def list_each(session: Session, chosen: Iterable[bytes]) -> int:
    """Lists directories under the library. Returns how many of the listings were answered from the
    catalog."""
    before = session.totals()["metadata_hits"]
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", _LIST],
        input=b"\0".join(chosen),
        env=session.env(),
        check=True,
        timeout=60,
    )
    told: int = session.totals()["metadata_hits"] - before
    return told


def wait_told(session: Session, chosen: Iterable[bytes] | None = None, timeout: float = 30) -> None:
    """Waits until the catalog answers every listing. The daemon must first list again those
    directories that changed in the last seconds before the scan."""
    session.wait_scanned()
    wanted = list(chosen) if chosen is not None else directories(session.source)
    wait_until(
        lambda: list_each(session, wanted) == len(wanted),
        timeout=timeout,
        what="listings of all directories",
        every=0.1,
    )
