"""Asks the file system about the directories of a configuration. Nothing is written."""

import os
from contextlib import suppress
from pathlib import Path

_RAM_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})
# File systems in which the kernel presents its own state. No file can be created there, even if
# access(2) reports that root may write.
_KERNEL_FILE_SYSTEMS = frozenset(
    {"bpf", "cgroup", "cgroup2", "debugfs", "devpts", "mqueue", "proc", "securityfs", "sysfs"}
)


def is_inside(inner: Path, outer: Path) -> bool:
    """Whether `inner` is below the directory `outer`. The comparison uses the device and the inode,
    because a bind mount gives a directory several paths. Returns False if `outer` cannot be
    examined."""
    try:
        place = os.stat(outer)  # call stat only once, because `outer` may be on a slow source
    except OSError:
        return False
    for above in Path(os.path.realpath(inner)).parents:
        with suppress(OSError):
            if os.path.samestat(os.stat(above), place):
                return True
    return False


def capacity_bytes(directory: Path) -> int | None:
    """Returns the size [bytes] of the file system of `directory`; None if the size is not
    limited."""
    status = os.statvfs(directory)
    # ramfs, and tmpfs with size=0, report 0 blocks, because their size is not limited.
    return status.f_blocks * status.f_frsize or None


def block_bytes(directory: Path) -> int:
    """The least space [bytes] that a non-empty file occupies on the file system of `directory`."""
    return max(os.statvfs(directory).f_frsize, 512)


def is_writable(directory: Path) -> bool:
    """Whether permissions and mount options allow this user to create files in `directory`. Free
    space is not checked."""
    return os.access(directory, os.R_OK | os.W_OK | os.X_OK, effective_ids=True)


def is_in_ram(directory: Path) -> bool:
    """Whether the file system that holds `directory` keeps its files in memory."""
    return _mount(directory)[0] in _RAM_FILE_SYSTEMS


def kernel_file_system(directory: Path) -> str | None:
    """If `directory` is on a file system of _KERNEL_FILE_SYSTEMS, returns the type of this file
    system; otherwise None."""
    kind = _mount(directory)[0]
    return kind if kind in _KERNEL_FILE_SYSTEMS else None


def mount_options(directory: Path) -> frozenset[str]:
    """The mount options of the file system that holds `directory`; empty if they are not known."""
    return _mount(directory)[1]


def _mount(directory: Path) -> tuple[str, frozenset[str]]:
    """The type and the mount options of the file system that holds `directory`; both are empty if
    the file system is not known.

    Python has no statfs(2). So this function looks for the directory's device number in the
    kernel's table of mounts. The table lacks the device numbers of btrfs subvolumes, so both
    results are empty for a directory in a subvolume. The callers then conclude that the directory
    is not in memory, which is correct.
    """
    device = os.stat(directory).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        table = Path("/proc/self/mountinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        table = ""
    for line in table.split("\n"):
        # The form of a line is:
        # "id parent major:minor root mount-point options [tags...] - type source options"
        before, _, after = line.partition(" - ")
        if after and before.split(" ")[2] == wanted:
            kind, _, options = after.split(" ", 2)
            return kind, frozenset(options.split(","))
    return "", frozenset()
