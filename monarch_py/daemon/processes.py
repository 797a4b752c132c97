"""The processes of this user, as /proc shows them."""

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["began", "own_processes"]


def own_processes() -> Iterator[Path]:
    """The directories of all but this one."""
    me, uid = os.getpid(), os.geteuid()
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != me:
            try:
                if process.stat().st_uid == uid:
                    yield process
            except OSError:
                continue


def began(process: Path) -> int | None:
    """When it was started, by which it is told from a later one of its number; None once it has
    ended, whether it was waited for or not."""
    try:
        state, *fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(fields[18])
