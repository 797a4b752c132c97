"""Finds out how much more memory a RAM tier may take before the kernel kills a process of the job.

The pages of a tmpfs are charged to the memory cgroup of the process that wrote them. At the
cgroup's limit the OOM killer cannot free these pages, and kills a process instead. So a RAM tier's
room is never more than what the cgroup leaves.
"""

import os
import time
from pathlib import Path

# Share of a limit on memory that stays free for the job's own growth.
HEADROOM = 1 / 16
# cgroup v1 expresses "no limit" by a number near 2**63.
NO_LIMIT = 1 << 60


# How long Memory uses a measured value before it measures again [s].
LOOK_S = 1.0


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _stats(path: Path, *keys: str) -> list[int]:
    """The numbers that follow these keys in the file; 0 for a key that the file lacks."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        lines = []
    told = [words for line in lines if (words := line.split())[1:] and words[0] in keys]
    found = {words[0]: int(words[1]) for words in told}
    return [found.get(key, 0) for key in keys]


def _groups(cgroup_file: Path, mounts_file: Path) -> list[tuple[Path, bool]]:
    """The directories of our memory cgroup and its ancestors, each with whether it belongs to
    cgroup v2."""
    mounts: dict[str, Path] = {}
    for line in os.fsdecode(mounts_file.read_bytes()).splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2":
            mounts.setdefault("v2", Path(where))
        elif kind == "cgroup" and "memory" in options.split(","):
            mounts.setdefault("v1", Path(where))
    found: list[tuple[Path, bool]] = []
    for line in os.fsdecode(cgroup_file.read_bytes()).splitlines():
        number, controllers, path = line.split(":", 2)
        version = "v2" if number == "0" else "v1" if "memory" in controllers.split(",") else ""
        if version not in mounts:
            continue
        root, here = mounts[version], Path(path.lstrip("/"))
        # In a container the path may lie outside the mount; the mount itself is our group then.
        chain = [here, *here.parents] if (root / here).is_dir() else [Path(".")]
        found += [(root / part, version == "v2") for part in chain]
    return found


def _left_in(group: Path, v2: bool) -> int | None:
    limit = _number(group / ("memory.max" if v2 else "memory.limit_in_bytes"))
    used = _number(group / ("memory.current" if v2 else "memory.usage_in_bytes"))
    if limit is None or used is None or limit >= NO_LIMIT:
        return None
    # The kernel frees clean page cache on demand, so it counts as available.
    (cache,) = _stats(group / "memory.stat", "inactive_file" if v2 else "total_inactive_file")
    return limit - used + min(cache, used) - int(limit * HEADROOM)


def available_bytes(
    cgroup_file: Path = Path("/proc/self/cgroup"),
    mounts_file: Path = Path("/proc/self/mounts"),
    meminfo_file: Path = Path("/proc/meminfo"),
) -> int:
    """Bytes that may still be written to a tmpfs: the minimum over our memory cgroups and the
    machine, each less its headroom; never negative."""
    try:
        groups = _groups(cgroup_file, mounts_file)
    except (OSError, ValueError):
        groups = []
    left = [here for group in groups if (here := _left_in(*group)) is not None]
    total, machine = _stats(meminfo_file, "MemTotal:", "MemAvailable:")
    if total:
        left.append(machine * 1024 - int(total * 1024 * HEADROOM))
    return max(0, min(left, default=NO_LIMIT))


class Memory:
    """The available bytes, read once a second at most: the kernel may take long to sum a group."""

    def __init__(self) -> None:
        self._bytes, self._next_look_s = 0, 0.0

    def available_bytes(self) -> int:
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._bytes, self._next_look_s = available_bytes(), now_s + LOOK_S
        return self._bytes
