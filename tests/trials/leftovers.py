"""Finds what daemons leave behind: files in shared memory and on tiers, processes, descriptors and
mounts."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil
from support.forking import Process
from support.manifests import copies_in
from support.session import Session

from monarch_py.storage.tiers import tier_root
from monarch_py.util.processes import own_processes


def left(session: Session) -> list[str]:
    """Returns the paths of all files of a session, in shared memory and on its tiers, except copies
    and logs.

    The number in the name of a catalog's file is omitted.
    """
    paths = [path for place in places(session) for path in place.rglob("*")]
    return sorted(
        str(path.with_name("catalog") if path.name.startswith("catalog.") else path)
        for path in paths
        if path.parent.name != "c" and not path.name.startswith("log")
    )


def copies(session: Session) -> set[Path]:
    return {path for place in places(session) for path in place.rglob("c/*")}


def places(session: Session) -> list[Path]:
    mounts = (*session.tiers, *session.staging)
    return [session.shm, *(tier_root(mount) for mount in mounts)]


def recorded(session: Session) -> set[Path]:
    """Returns the copies that the manifests of the session's tiers record."""
    kept = [tier for tier, is_kept in enumerate(session.persistent) if is_kept]
    return {path for tier in kept for path in copies_in(session, tier).values()}


def processes_with(word: str) -> list[int]:
    """Returns the ids of the processes whose command line contains the word."""
    found = []
    for process in own_processes():
        with suppress(OSError):
            if word.encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


def is_of(pid: int, daemon: Process) -> bool:
    """Returns whether the process has ended, or is the daemon or one of its children."""
    try:
        return daemon.pid in (pid, psutil.Process(pid).ppid())
    except psutil.NoSuchProcess:
        return True


def files_of(daemon: Process, source: Path) -> list[str]:
    """Returns the paths of the source's files that the daemon has open."""
    try:
        found = [path for path, *_ in psutil.Process(daemon.pid).open_files()]
    except psutil.Error:
        return []
    return [path for path in found if Path(path).is_relative_to(source)]


def half_closed(daemon: Process) -> list[str]:
    """Returns the daemon's connections that the other end has closed, but the daemon has not."""
    gone = [link for link in psutil.net_connections("tcp") if link.status == psutil.CONN_CLOSE_WAIT]
    return [str(link) for link in gone if link.pid == daemon.pid]


def mounts_below(directory: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if str(directory) in line]
