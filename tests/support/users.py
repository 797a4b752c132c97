"""Other users than the one who runs the tests, as which only root can run programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import monarch_py
from support.session import Session

# Nobody has a home, a group or files of these.
ALICE, BOBBY = 65534, 65533

PACKAGE = Path(monarch_py.__file__).parents[1]


def as_user(uid: int, *argv: str | Path, groups: Sequence[int] = ()) -> list[str]:
    """The command, as a user that has no rights but its own and those of these groups; skips where
    that cannot be had."""
    if os.geteuid() != 0:
        pytest.skip("only root may become another user: run the tests as root")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is missing: install util-linux")
    others = f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"
    rights = [f"--reuid={uid}", f"--regid={uid}", others, "--bounding-set=-all"]
    # Through the shell: setpriv itself still may run what its new user may not.
    return ["setpriv", *rights, "sh", "-c", 'exec "$0" "$@"', *map(str, argv)]


def open_place() -> Iterator[Path]:
    """For a fixture: a directory that any user can reach, which pytest's own is not."""
    place = Path(tempfile.mkdtemp(prefix="monarch-test-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def python_for_all() -> str:
    """An interpreter of our version that any user can run; ours may lie in somebody's home."""
    same = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for found in (sys.executable, shutil.which(same, path="/usr/bin:/usr/local/bin")):
        command = as_user(ALICE, found or "", "-c", "")
        if found and not subprocess.call(command, stderr=subprocess.DEVNULL):
            return found
    pytest.skip(f"other users cannot run {sys.executable}, and there is no {same} in /usr/bin")


def install_for_all(prefix: Path) -> None:
    """Makes a virtual environment that any user can run, with the packages of this one."""
    subprocess.run([python_for_all(), "-m", "venv", "--without-pip", str(prefix)], check=True)
    (packages,) = prefix.glob("lib/python3*/site-packages")
    (packages / "ours.pth").write_text("\n".join(filter(None, sys.path)))
    (packages / "monarch_py").symlink_to(PACKAGE / "monarch_py")
    command = prefix / "bin" / "monarch"
    command.write_text(f"#!{prefix}/bin/python\nfrom monarch_py.__main__ import main\nmain()\n")
    command.chmod(0o755)


def environment(session: Session) -> dict[str, str]:
    """As the session's, for an interpreter that does not know our packages."""
    path = [entry for entry in (str(PACKAGE), *sys.path) if entry]
    return session.env(False, HOME="/", PYTHONPATH=":".join(path), PYTHONDONTWRITEBYTECODE="1")


def ours(session: Session) -> list[str]:
    """Puts what follows under the library, and nothing before it."""
    env = session.env()
    return ["env", *(f"{name}={env[name]}" for name in ("LD_PRELOAD", "MONARCH_CONFIG"))]
