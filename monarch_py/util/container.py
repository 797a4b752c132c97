"""Detects whether this process runs in a container, and which paths come from its image."""

import os
import re
from pathlib import Path

# For each kind of container, a file that is in the root directory of such a container.
MARKS = {
    "/.dockerenv": "Docker",
    "/run/.containerenv": "podman",
    "/.singularity.d": "Apptainer",
}


def container() -> str:
    """Returns the kind of container in which this process runs; "" if no container is
    recognized."""
    found = (kind for mark, kind in MARKS.items() if os.path.lexists(mark))
    # systemd-nspawn and LXC set this variable.
    return next(found, os.environ.get("container", ""))  # noqa: SIM112


def is_of_the_image(path: Path) -> bool:
    """Returns whether a path is on the mount of the root directory. In a container, this mount has
    the files of the image. Returns False if the list of mounts cannot be read."""
    try:
        table = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return False
    # The fifth field is the mount point. In this field, spaces and some other characters are
    # written as octal escapes.
    written = [line.split(" ")[4] for line in table.splitlines()]
    mounts = {re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), each) for each in written}
    resolved = Path(os.path.realpath(path))
    return not any(str(place) in mounts for place in (resolved, *resolved.parents[:-1]))
