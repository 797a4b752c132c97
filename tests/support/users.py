"""Runs programs as users other than the one who runs the tests, which only root can do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

import monarch_py
from monarch_py.ipc.session import SessionDir
from support.session import Session

# User ids that have no home directory, no group and no files.
ALICE, BOBBY = 65534, 65533

PACKAGE = Path(monarch_py.__file__).parents[1]


def as_user(uid: int, *argv: str | Path, groups: Sequence[int] = ()) -> list[str]:
    """Returns a command that runs `argv` as a user that has no privileges except its own and those
    of `groups`. Skips the test if this process may not become another user."""
    if os.geteuid() != 0:
        pytest.skip("only root may become another user: run the tests as root")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is missing: install util-linux")
    others = f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"
    rights = [f"--reuid={uid}", f"--regid={uid}", others, "--bounding-set=-all"]
    # A shell starts the program, because setpriv itself still has root's permission to execute any
    # file.
    return ["setpriv", *rights, "sh", "-c", 'exec "$0" "$@"', *map(str, argv)]


def open_place() -> Iterator[Path]:
    """Yields a directory that any user can access, unlike pytest's own directories. Fixtures call
    this."""
    place = Path(tempfile.mkdtemp(prefix="monarch-test-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@cache
def python_for_all() -> str:
    """Returns a Python interpreter that any user can execute. It has the version of the tests' own
    interpreter, which may lie in a private home directory."""
    same = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for found in (sys.executable, shutil.which(same, path="/usr/bin:/usr/local/bin")):
        command = as_user(ALICE, found or "", "-c", "")
        if found and not subprocess.call(command, stderr=subprocess.DEVNULL):
            return found
    pytest.skip(f"other users cannot run {sys.executable}, and there is no {same} in /usr/bin")


class AlicesSession(Session):
    """A session whose daemon runs as Alice. `directory` must be one that any user can access."""

    @property
    def paths(self) -> SessionDir:
        return SessionDir(self.shm / f"monarch-{ALICE}" / super().paths.path.name)

    def start(self, *, wait: bool = True, prefix: Sequence[str] = ()) -> Session:
        return super().start(wait=wait, prefix=[*prefix, *as_user(ALICE)])

    def _is_up(self) -> bool:
        # Unlike the base class, this does not read the control segment, because only the daemon's
        # own user may open it.
        assert self.daemon is not None
        assert self.daemon.poll() is None, self.log.read_text(errors="replace")
        return self.connection.runs()

    def command(self, *words: str) -> list[str]:
        return [python_for_all(), *super().command(*words)[1:]]

    def env(self, preload: bool = True, **more: str) -> dict[str, str]:
        return {**super().env(preload), **for_all(), **more}


def for_all() -> dict[str, str]:
    """Returns environment variables that let the Python interpreter of any user find the tests'
    packages."""
    path = [entry for entry in (str(PACKAGE), *sys.path) if entry]
    return {"HOME": "/", "PYTHONPATH": ":".join(path), "PYTHONDONTWRITEBYTECODE": "1"}


def install_for_all(prefix: Path) -> None:
    """Makes a virtual environment that any user can use. Its interpreter finds the packages of this
    process."""
    subprocess.run([python_for_all(), "-m", "venv", "--without-pip", str(prefix)], check=True)
    (packages,) = prefix.glob("lib/python3*/site-packages")
    (packages / "ours.pth").write_text("\n".join(filter(None, sys.path)))
    (packages / "monarch_py").symlink_to(PACKAGE / "monarch_py")
    command = prefix / "bin" / "monarch"
    command.write_text(f"#!{prefix}/bin/python\nfrom monarch_py.__main__ import main\nmain()\n")
    command.chmod(0o755)


def environment(session: Session) -> dict[str, str]:
    """Returns the session's environment, with variables that let an interpreter find the tests'
    packages."""
    return session.env(False, **for_all())


def ours(session: Session) -> list[str]:
    """Returns words that make a command run under the library if they are put before it. Programs
    that precede these words, such as setpriv, run without the library."""
    env = session.env()
    return ["env", *(f"{name}={env[name]}" for name in ("LD_PRELOAD", "MONARCH_CONFIG"))]
