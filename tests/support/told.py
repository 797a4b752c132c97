"""When the catalog tells what a source has, and what it told of."""

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
    """Every directory of a tree without mount points, its root included."""
    return [folder for folder, _, _ in os.walk(os.fsencode(root))]


def list_each(session: Session, chosen: Iterable[bytes]) -> int:
    """Lists directories under the library; returns how many of the listings the catalog told."""
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
    """Until the catalog tells every listing. What changed in the last seconds before the scan is
    listed again by the daemon before that."""
    session.wait_scanned()
    wanted = list(chosen) if chosen is not None else directories(session.source)
    wait_until(
        lambda: list_each(session, wanted) == len(wanted),
        timeout=timeout,
        what="listings of all directories",
        every=0.1,
    )
