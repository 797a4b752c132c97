"""Observes a daemon's CPU time, the usage of its tiers while it works, and the open files of a
process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from pathlib import Path

import psutil

from monarch_py.storage.tiers import tier_root
from support.files import du_bytes
from support.session import Session, wait_until


class QuotaWatch:
    """Repeatedly measures the usage of a tier's directory.

    most_bytes : the largest usage measured so far
    """

    def __init__(self, mount_point: Path) -> None:
        self.root = tier_root(mount_point)
        self.most_bytes = self.looks = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._end.wait(0.01):
            self.most_bytes = max(self.most_bytes, du_bytes(self.root))
            self.looks += 1

    def __enter__(self) -> QuotaWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        command = ["du", "-s", "--block-size=1", str(self.root)]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode == 0:
            self.most_bytes = max(self.most_bytes, int(said.stdout.split()[0]))


def open_by(pid: int) -> list[str]:
    """Returns the files that a process has open. Leaves out descriptors that the process closes
    during this call."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(descriptor))
    return found


def cpu_seconds(session: Session) -> float:
    """Returns the CPU time [s] that the daemon has used since its start."""
    assert session.daemon is not None
    used = psutil.Process(session.daemon.pid).cpu_times()
    return float(used.user + used.system)


def assert_quiet(session: Session, seconds: float = 0.5) -> None:
    """Checks that the daemon becomes idle: a busy loop would use a whole processor all the time."""

    def is_quiet() -> bool:
        before = cpu_seconds(session)
        time.sleep(seconds)
        return cpu_seconds(session) - before < seconds / 4

    wait_until(is_quiet, timeout=5, what="an idle daemon")


def settle(session: Session, timeout: float = 60) -> dict[str, int]:
    """Opens every file, and waits until each file either has a copy or has a reason to be read only
    from the source.

    Returns how many files have copies ('present'), and how many files there are for each reason.
    """
    source = session.wait_all_present(timeout)["sources"][0]
    return {"present": source["present"], **source["bypass"]}
