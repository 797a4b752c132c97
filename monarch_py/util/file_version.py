"""The version of a file, which shows whether the file's content was replaced."""

from pathlib import Path

# A file's inode number, size [bytes] and modification time [ns]. If the file gets new content, at
# least one of the three values changes.
Version = tuple[int, int, int] | None


def version_of(file: Path) -> Version:
    """Returns the version of a file, or None if stat(2) of the file fails."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
