"""The requirements and exported symbols of a shared library, as shown by readelf."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

# The version of glibc in CentOS 7, and so in old containers. The preload library must load there.
OLDEST_GLIBC = (2, 17)


def readelf(*words: str | Path) -> str:
    command = ["readelf", "-W", *(str(word) for word in words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed(library: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", library))


def newest_glibc(library: Path) -> tuple[int, ...]:
    versions = re.findall(r"GLIBC_([0-9.]+)", readelf("-V", library))
    return max(tuple(int(part) for part in version.split(".")) for version in versions)


def exported(library: Path) -> set[str]:
    rows = re.findall(r"^ *\d+: .*", readelf("--dyn-syms", library), re.M)
    found = [row.split() for row in rows]
    return {row[7] for row in found if len(row) > 7 and row[6] != "UND" and row[4] == "GLOBAL"}
