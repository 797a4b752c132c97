"""A memory cgroup for one test, below the cgroup that the test itself runs in."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from support.session import wait_until


class MemoryGroup:
    """An empty cgroup with a memory limit.

    prefix : the words that start a command inside the cgroup
    """

    def __init__(self, path: Path, v2: bool) -> None:
        self.path, self._v2 = path, v2

    @property
    def prefix(self) -> list[str]:
        # The shell joins the cgroup before it becomes the command, so that every page of the
        # command is counted in the cgroup.
        return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self.path)]

    def limit(self, size_bytes: int) -> None:
        name = "memory.max" if self._v2 else "memory.limit_in_bytes"
        (self.path / name).write_text(str(size_bytes))

    def used_bytes(self) -> int:
        name = "memory.current" if self._v2 else "memory.usage_in_bytes"
        return int((self.path / name).read_text())

    def oom_kills(self) -> int:
        """Returns the number of processes in the cgroup that the kernel's OOM killer has killed."""
        name = "memory.events" if self._v2 else "memory.oom_control"
        lines = (self.path / name).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def remove(self) -> None:
        """Waits until the cgroup's processes have ended, then removes the cgroup. The kernel may
        release the processes' pages a moment later, so the removal is retried."""

        def gone() -> bool:
            with suppress(OSError):
                self.path.rmdir()
            return not self.path.exists()

        wait_until(gone, timeout=15, what=f"the end of the cgroup {self.path}")


def _mounted(kind: str) -> Path | None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, found, options, *_ = line.split()
        if found == kind and (kind == "cgroup2" or "memory" in options.split(",")):
            return Path(where)
    return None


def _home() -> tuple[Path, bool]:
    """Returns the new cgroup's parent directory, and whether the parent belongs to cgroup v2."""
    if root := _mounted("cgroup"):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            here = root / path.lstrip("/")
            if "memory" in controllers.split(",") and here.is_dir():
                return here, False
        return root, False
    root = _mounted("cgroup2")
    if root is None or "memory" not in (root / "cgroup.controllers").read_text().split():
        pytest.skip("no memory cgroup: mount the memory controller at /sys/fs/cgroup/memory")
    # In cgroup v2, only the root group may both contain processes and distribute memory to
    # subgroups.
    (root / "cgroup.subtree_control").write_text("+memory")
    return root, True


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """Yields a new cgroup with this limit. Skips the test if none can be created."""
    try:
        home, v2 = _home()
        path = home / f"monarch-test-{os.getpid()}"
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made: {error}")
    group = MemoryGroup(path, v2)
    try:
        group.limit(limit_bytes)
        subprocess.run([*group.prefix, "true"], check=True)
        yield group
    finally:
        group.remove()
