"""With MONARCH_LOG=debug, each process writes a log file that says from where it opens files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from support.session import Session

Factory = Callable[..., Session]

# Reads and changes files, reads in a forked child, and prints the IDs of both processes.
PROGRAM = """
import os, sys
present, late, written = sys.argv[1:]
open(present).read()
open(late).read()
open(written, "a").close()
open(written).read()
child = os.fork()
if not child:
    open(present).read()
    os._exit(0)
os.waitpid(child, 0)
print(os.getpid(), child)
"""


def run(session: Session, tree: Path, **env: str) -> list[int]:
    names = [str(tree / name) for name in ("a/f1", "a/f2", "c/f3")]
    done = session.run([sys.executable, "-c", PROGRAM, *names], env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return [int(word) for word in done.stdout.split()]


def test_each_process_says_what_it_does(
    session_factory: Factory, tree: Path, tmp_path: Path
) -> None:
    session = session_factory(tree, prefetch="none").start()
    session.wait_scanned()
    assert session.monarch("warm", str(tree / "a/f1")).returncode == 0
    logs = tmp_path / "logs"
    logs.mkdir()
    parent, child = run(session, tree, MONARCH_LOG="DEBUG", MONARCH_LOG_DIR=str(logs))
    assert sorted(p.name for p in logs.iterdir()) == sorted(
        f"monarch-{pid}.log" for pid in (parent, child)
    )
    lines = (logs / f"monarch-{parent}.log").read_text().splitlines()
    said = [line.split(" ", 2)[2] for line in lines]
    assert said[0].startswith("attached to the daemon of ")
    assert said[1].startswith(f"open a/f1: {session.tiers[0]}/")
    assert said[2:] == [
        "open a/f2: source: no copy yet",
        # The open could have created the file, so the directory counts as changed.
        f"recorded a change of inode {(tree / 'c').stat().st_ino}",
        f"recorded a change of inode {(tree / 'c/f3').stat().st_ino}",
        "open c/f3: source: the file has changed",
    ]
    assert "open a/f1: " in (logs / f"monarch-{child}.log").read_text()
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in logs.iterdir())


def test_no_file_without_it(session_factory: Factory, tree: Path, tmp_path: Path) -> None:
    session = session_factory(tree).start()
    for level in ("", "info"):
        run(session, tree, MONARCH_LOG=level, MONARCH_LOG_DIR=str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_a_log_that_is_somebody_elses_is_left(
    session_factory: Factory, tree: Path, tmp_path: Path
) -> None:
    """If another user has put a symbolic link in the place of the log, the library does not write
    to the link's target."""
    logs, victim = tmp_path / "logs", tmp_path / "victim"
    logs.mkdir()
    victim.write_text("precious")
    session = session_factory(tree).start()
    program = (
        "import os, sys; from pathlib import Path\n"
        "pid = os.fork()\n"
        "if pid: sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
        f"os.system(f'ln -s {victim} {logs}/monarch-{{os.getpid()}}.log')\n"
        f"open({str(tree / 'a/f1')!r}).read()\n"
    )
    done = session.run(
        [sys.executable, "-c", program],
        env={"MONARCH_LOG": "debug", "MONARCH_LOG_DIR": str(logs)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert victim.read_text() == "precious"
