"""Creates a directory for files that come and go where ext4 creates them quickly.

ext4 puts a new file's inode into the block group of the file's directory. It does not reuse the
inode of a removed file for up to six minutes, but steps over all such inodes of the group whenever
it creates a file there. So if a session's copies were removed a moment ago, the next session's
copies in the same group cost up to a millisecond of CPU each instead of 0.03 ms. If a directory has
the flag FS_TOPDIR_FL, ext4 spreads its subdirectories over the groups, by their names. By default
ext4 spreads them over flexible groups, which have some 2 GiB each, so a smaller disk gains nothing.
"""

import fcntl
import os
import secrets
import struct
from contextlib import suppress
from pathlib import Path

# From <linux/fs.h>. The kernel reads and writes an int, whatever the numbers say.
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_TOPDIR_FL = 0x80086601, 0x40086602, 0x00020000


def make_apart(directory: Path) -> None:
    """Creates a private directory in a block group of its own, unless the path exists. Only one
    process at a time may call this for a path. Raises OSError if it cannot be created."""
    for left in directory.parent.glob(f"{directory.name}.*"):
        with suppress(OSError):  # of a process that was killed before it renamed the directory
            left.rmdir()
    if os.path.lexists(directory):
        return
    spread_subdirectories(directory.parent)
    # The directory is created under a random name, because ext4 would find the same group again by
    # the same name.
    created = directory.with_name(f"{directory.name}.{secrets.token_hex(8)}")
    created.mkdir()
    try:
        created.chmod(0o700)  # whatever the umask is
        created.rename(directory)
    except OSError:
        created.rmdir()
        raise


def spread_subdirectories(directory: Path) -> None:
    """Has ext4 put each later subdirectory of a directory into another block group. Does nothing on
    other file systems, which do not have the flag."""
    with suppress(OSError):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            (flags,) = struct.unpack_from("I", fcntl.ioctl(fd, FS_IOC_GETFLAGS, bytes(8)))
            if not flags & FS_TOPDIR_FL:
                fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("II", flags | FS_TOPDIR_FL, 0))
        finally:
            os.close(fd)
