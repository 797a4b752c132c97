"""Finds out how much more memory a RAM tier may take before the kernel kills a process of the job.

The pages of a tmpfs are charged to the memory cgroup of the process that wrote them, and the kernel
cannot free them. If the cgroup reaches its limit, the OOM killer kills a process. So a RAM tier
never gets more room than is free in the cgroup.
"""

import os
import re
import time
from functools import lru_cache
from pathlib import Path

# Copies leave this fraction of each memory limit unused, so that the memory of the job can grow.
HEADROOM = 1 / 16
# cgroup v1 expresses "no limit" as a number near 2**63.
NO_LIMIT = 1 << 60


# A call of `available_bytes` takes a millisecond, but the daemon places small files in up to a
# thousand portions a second. So `MemoryRoom` reuses the result of a call until copies have taken
# LOOK_BYTES, or until a certain time has passed. This time is the available memory divided by
# GROWTH [bytes/s], but at least LOOK_S and at most MOST_LOOK_S [s]. Programs cannot use up the
# available memory sooner, because processors touch new pages more slowly than GROWTH.
LOOK_S, MOST_LOOK_S, LOOK_BYTES, GROWTH = 0.05, 0.5, 64 << 20, 32 << 30


def _read(path: str | Path) -> bytes:
    """Returns the file's content; b"" if the file cannot be read. Uses plain system calls for
    speed: while a RAM tier is filled, several files are read 20 times a second."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _number(path: str) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _stat(text: bytes, key: str) -> int:
    """Searches `text` for the line that begins with `key`. Returns the number in this line; 0 if
    there is no such line."""
    found = re.search(rb"^%s\s+(\d+)" % key.encode(), text, re.MULTILINE)
    return int(found[1]) if found else 0


@lru_cache(maxsize=1)
def _groups(cgroups: bytes, mount_lines: bytes) -> list[tuple[str, bool]]:
    """Returns the memory cgroup of this process and all ancestors of this cgroup. Each cgroup is a
    pair: its directory, and whether it belongs to cgroup v2. The result is cached until the cgroup
    or the mounts change.

    cgroups, mount_lines : the content of /proc/self/cgroup and of /proc/self/mounts
    """
    mounts: dict[str, Path] = {}
    for line in os.fsdecode(mount_lines).splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2":
            mounts.setdefault("v2", Path(where))
        elif kind == "cgroup" and "memory" in options.split(","):
            mounts.setdefault("v1", Path(where))
    found: list[tuple[str, bool]] = []
    for line in os.fsdecode(cgroups).splitlines():
        number, controllers, path = line.split(":", 2)
        version = "v2" if number == "0" else "v1" if "memory" in controllers.split(",") else ""
        if version not in mounts:
            continue
        root, here = mounts[version], Path(path.lstrip("/"))
        # In a container, the mount may show only the cgroup of this process, as its root, so that
        # this path does not exist.
        chain = [here, *here.parents] if (root / here).is_dir() else [Path(".")]
        found += [(str(root / part), version == "v2") for part in chain]
    return found


def _left_in(group: str, v2: bool) -> int | None:
    limit = _number(f"{group}/{'memory.max' if v2 else 'memory.limit_in_bytes'}")
    if limit is None or limit >= NO_LIMIT:
        return None
    used = _number(f"{group}/{'memory.current' if v2 else 'memory.usage_in_bytes'}")
    if used is None:
        return None
    # Inactive pages of the page cache are counted as available, because the kernel frees them on
    # demand.
    stats = _read(f"{group}/memory.stat")
    cache = _stat(stats, "inactive_file" if v2 else "total_inactive_file")
    return limit - used + min(cache, used) - int(limit * HEADROOM)


def available_bytes(
    cgroup_file: Path = Path("/proc/self/cgroup"),
    mounts_file: Path = Path("/proc/self/mounts"),
    meminfo_file: Path = Path("/proc/meminfo"),
) -> int:
    """Returns how many more bytes may be written to a tmpfs, 0 or more. Each memory cgroup of this
    process, and the machine itself, sets a limit: its free memory minus the headroom. The result is
    the lowest of these limits."""
    try:
        groups = _groups(_read(cgroup_file), _read(mounts_file))
    except ValueError:
        groups = []
    left = [here for group in groups if (here := _left_in(*group)) is not None]
    meminfo = _read(meminfo_file)
    total, machine = _stat(meminfo, "MemTotal:"), _stat(meminfo, "MemAvailable:")
    if total:
        left.append(machine * 1024 - int(total * 1024 * HEADROOM))
    return max(0, min(left, default=NO_LIMIT))


class MemoryRoom:
    """The memory that a daemon's RAM tiers may take in addition to what they have. All these tiers
    share one object, because they compete for the same free memory."""

    def __init__(self) -> None:
        # `_reserved_bytes` : the room that is reserved for unfinished fills.
        # `_bytes` : the latest result of `available_bytes`.
        # `_next_look_s` : the time from which `available_bytes` is called again [s].
        # `_filled_bytes` : since that call, the room that fills have used, minus the room that
        # removals have freed.
        self._reserved_bytes = self._bytes = self._filled_bytes = 0
        self._next_look_s = 0.0

    def free_bytes(self) -> int:
        """Returns the free memory [bytes], including memory that is already reserved for unfinished
        fills."""
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._bytes, self._filled_bytes = available_bytes(), 0
            self._next_look_s = now_s + max(LOOK_S, min(self._bytes / GROWTH, MOST_LOOK_S))
        return self._bytes - self._filled_bytes

    def left_bytes(self) -> int:
        """Returns the room for new copies [bytes]. The result is negative if more memory is
        reserved than is free."""
        return self.free_bytes() - self._reserved_bytes

    def reserve(self, size_bytes: int) -> None:
        """Reserves room for fills; a negative size cancels reservations."""
        self._reserved_bytes += size_bytes

    def fill(self, size_bytes: int) -> None:
        """Counts room that fills have used; a negative size counts room that removals have
        freed."""
        self._filled_bytes += size_bytes
        if self._filled_bytes > LOOK_BYTES:
            self._next_look_s = 0.0
