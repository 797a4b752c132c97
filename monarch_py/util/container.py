"""Finds out whether this process runs in a container, and which paths its image brings."""

import os
import re
from pathlib import Path

# Files that a container of each kind has in its root.
MARKS = {
    "/.dockerenv": "Docker",
    "/run/.containerenv": "podman",
    "/.singularity.d": "Apptainer",
}


def container() -> str:
    """The kind of the container that this process runs in; "" if none is recognized."""
    found = (kind for mark, kind in MARKS.items() if os.path.lexists(mark))
    # systemd-nspawn and LXC set the variable.
    return next(found, os.environ.get("container", ""))  # noqa: SIM112


def is_of_the_image(path: Path) -> bool:
    """Whether a path lies on the root file system of a container, and on no mount in it. False if
    that cannot be told."""
    try:
        table = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return False
    # The fifth field is the mount point. Blanks and some others are written as octal numbers there.
    written = [line.split(" ")[4] for line in table.splitlines()]
    mounts = {re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), each) for each in written}
    resolved = Path(os.path.realpath(path))
    return not any(str(place) in mounts for place in (resolved, *resolved.parents[:-1]))
