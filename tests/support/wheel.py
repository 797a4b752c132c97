"""Checks the content of wheels of the package.

``PYTHONPATH=tests python -m support.wheel FILE.whl ...`` prints, for each wheel, which files are
missing and which files should not be in the wheel.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from support.elf import OLDEST_GLIBC, needed, newest_glibc

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "monarch_py/libmonarch.so"
# The results of the build, and the marker file for type checkers.
BUILT = {"monarch_py/_native.abi3.so", LIBRARY, "monarch_py/py.typed", "monarch_py/slowsource"}
# slowsource is linked to libfuse3, on which a wheel for many systems (manylinux) may not depend.
NOT_FOR_MANY = {"monarch_py/slowsource"}


def expected() -> set[str]:
    """Returns the files of the package, except the metadata that pip adds to the wheel."""
    package = ROOT / "monarch_py"
    sources = [*package.rglob("*.py"), *(package / "simulator" / "scenarios").glob("*.yaml")]
    sources += [package / "report" / name for name in ("dashboard.json", "page.html")]
    packaging = ROOT / "packaging"
    shared = [path for path in (packaging / "share").rglob("*") if path.is_file()]
    names = {str(path.relative_to(ROOT)) for path in sources}
    names |= {f"share/monarch/slurm/{path.name}" for path in (packaging / "slurm").iterdir()}
    names |= {f"bin/{path.name}" for path in (packaging / "bin").iterdir()}
    return BUILT | names | {str(path.relative_to(packaging)) for path in shared}


def library_problems(archive: ZipFile) -> list[str]:
    with TemporaryDirectory() as directory:
        library = Path(archive.extract(LIBRARY, directory))
        newest, libraries = newest_glibc(library), needed(library)
    said = [f"{LIBRARY} needs {name}" for name in libraries if name != "libc.so.6"]
    if newest > OLDEST_GLIBC:
        said.append(f"{LIBRARY} needs glibc {'.'.join(map(str, newest))}")
    return said


def problems(wheel: Path) -> list[str]:
    wanted = expected() - (NOT_FOR_MANY if "-manylinux_" in wheel.name else set())
    with ZipFile(wheel) as archive:
        # Files that are installed to share/ of the environment lie below NAME.data/data/.
        files = [name for name in archive.namelist() if not name.endswith("/")]
        names = {name.partition(".data/data/")[2] or name for name in files}
        names = {re.sub(r"^[^/]*\.data/scripts/", "bin/", name) for name in names}
        names = {name for name in names if ".dist-info/" not in name}
        said = library_problems(archive) if LIBRARY in names else []
    said += [f"it lacks {name}" for name in sorted(wanted - names)]
    said += [f"it has {name}" for name in sorted(names - wanted)]
    # The wheel must use Python's stable ABI, so that every version from 3.10 on can install it.
    if "-cp310-abi3-" not in wheel.name:
        said.append("it cannot be installed by every Python from 3.10 on")
    return [f"{wheel.name}: {words}" for words in said]


if __name__ == "__main__":
    found = [line for name in sys.argv[1:] for line in problems(Path(name))]
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)
