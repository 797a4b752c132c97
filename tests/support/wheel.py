"""What is in a wheel of the package.

``PYTHONPATH=tests python -m support.wheel FILE.whl`` says what is missing, and what is too much.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[2]
# What the build makes, and a mark for type checkers.
BUILT = {
    "monarch_py/_native.abi3.so",
    "monarch_py/libmonarch.so",
    "monarch_py/py.typed",
    "monarch_py/slowsource",
}


def expected() -> set[str]:
    """The files of the package, except what pip adds about the wheel itself."""
    package = ROOT / "monarch_py"
    sources = [*package.rglob("*.py"), *(package / "simulator" / "scenarios").glob("*.yaml")]
    sources.append(package / "report" / "dashboard.json")
    packaging = ROOT / "packaging"
    shared = [path for path in (packaging / "share").rglob("*") if path.is_file()]
    names = {str(path.relative_to(ROOT)) for path in sources}
    names |= {f"share/monarch/slurm/{path.name}" for path in (packaging / "slurm").iterdir()}
    return BUILT | names | {str(path.relative_to(packaging)) for path in shared}


def problems(wheel: Path) -> list[str]:
    with ZipFile(wheel) as archive:
        # What goes to share/ of the environment lies below NAME.data/data/.
        names = {name.partition(".data/data/")[2] or name for name in archive.namelist()}
        names = {re.sub(r"^[^/]*\.data/scripts/", "bin/", name) for name in names}
        names = {name for name in names if ".dist-info/" not in name}
    said = [f"{wheel.name} lacks {name}" for name in sorted(expected() - names)]
    said += [f"{wheel.name} has {name}" for name in sorted(names - expected())]
    # Python's stable interface, so that each version may install it.
    if "-cp310-abi3-" not in wheel.name:
        said.append(f"{wheel.name} is not for every Python from 3.10 on")
    return said


if __name__ == "__main__":
    found = problems(Path(sys.argv[1]))
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)
