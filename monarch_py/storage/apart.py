"""Creates a directory for short-lived files, in a block group where ext4 creates files quickly.

ext4 puts the inode of a new file into the block group of the file's directory. For up to six
minutes, ext4 does not reuse the inode of a removed file. Each creation of a file must skip all such
inodes of the group. If the last session has just removed its copies from the group, creating a copy
takes up to a millisecond of CPU time. In another group, creating a copy takes 0.03 ms.

If a directory has the flag FS_TOPDIR_FL, ext4 spreads the directory's subdirectories over the disk.
A hash of the subdirectory's name selects a flexible block group, which has about 2 GiB by default.
A smaller disk has only one such group, so nothing is gained there.
"""

import fcntl
import os
import secrets
import struct
from contextlib import suppress
from pathlib import Path

# From <linux/fs.h>. The first two numbers encode the size of a long, but the kernel reads and
# writes an int.
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_TOPDIR_FL = 0x80086601, 0x40086602, 0x00020000


def make_apart(directory: Path) -> None:
    """Creates a private directory, in a block group that ext4 selects at random. Does nothing if
    the path exists. Only one process at a time may call this for the same path. Raises OSError if
    the directory cannot be created."""
    for left in directory.parent.glob(f"{directory.name}.*"):
        # If a process was killed before the rename below, it has left a directory with a random
        # name.
        with suppress(OSError):
            left.rmdir()
    if os.path.lexists(directory):
        return
    spread_subdirectories(directory.parent)
    # ext4 selects a directory's block group by the directory's name. With a fixed name, it would
    # select the same group again. So the directory is created under a random name.
    created = directory.with_name(f"{directory.name}.{secrets.token_hex(8)}")
    created.mkdir()
    try:
        created.chmod(0o700)  # whatever the umask is
        created.rename(directory)
    except OSError:
        created.rmdir()
        raise


def spread_subdirectories(directory: Path) -> None:
    """Sets FS_TOPDIR_FL on a directory. From then on, ext4 selects the block group of a new
    subdirectory by the subdirectory's name. Does nothing on file systems without this flag."""
    with suppress(OSError):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            (flags,) = struct.unpack_from("I", fcntl.ioctl(fd, FS_IOC_GETFLAGS, bytes(8)))
            if not flags & FS_TOPDIR_FL:
                fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("II", flags | FS_TOPDIR_FL, 0))
        finally:
            os.close(fd)
