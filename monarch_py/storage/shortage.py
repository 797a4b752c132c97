"""Describes a file system on which other files leave less room than a tier's quota."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from monarch_py.util.units import format_size

# This much room [bytes] is kept free on a tier's file system, for the manifest and the directories.
# It does not depend on the quota.
MARGIN_BYTES = 1 << 20
HINT = "remove files there, or add a tier on another file system"


def shortage(
    mount_point: Path, quota_bytes: int, used_bytes: int, directory: int | None = None
) -> str:
    """Returns a sentence about the tier's file system if the file system has less room than the
    quota. Returns "" if it has enough room, or cannot be examined.

    used_bytes : the room that the tier's copies occupy
    directory : a descriptor of a directory in the tier; None: the mount point is used instead
    """
    with suppress(OSError):
        disk = shutil.disk_usage(mount_point if directory is None else directory)
        most = used_bytes + max(0, disk.free - MARGIN_BYTES)
        if most < quota_bytes:
            total, free = format_size(disk.total), format_size(disk.free)
            return (
                f"tier {mount_point}: copies get at most {format_size(most)} of the quota of"
                f" {format_size(quota_bytes)}, because its file system of {total} has only {free}"
                f" free, and other files take {format_size(max(0, disk.used - used_bytes))};"
                f" {HINT}, or write a smaller max_storage_quota"
            )
    return ""


def occupied_bytes(directory: Path) -> int:
    """Returns the room [bytes] that all files below a directory occupy."""
    n_bytes = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):  # the file was removed just now
                n_bytes += os.lstat(os.path.join(place, name)).st_blocks * 512
    return n_bytes
