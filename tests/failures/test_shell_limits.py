"""If `ulimit` allows too few open files, or too small files, commands name the limit and the value
that they need."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.files import Files
from support.session import Session


def limited(session: Session, limit: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a `monarch` command under a limit that the shell sets (`ulimit`)."""
    return subprocess.run(
        ["/bin/bash", "-c", f'ulimit {limit}; exec "$@"', "sh", *session.command(*words)],
        env=session.env(preload=False),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("limit", "named", "mend"),
    [
        ("-n 6", "have only 6 open files", "`ulimit -n 256` or more"),
        ("-n 10", "have only 10 open files", "`ulimit -n 256` or more"),
        ("-n 20", "have only 20 open files", "`ulimit -n 256` or more"),
        ("-f 0", "write only 0 B to a file", "`ulimit -f unlimited`"),
        ("-f 100", "write only 100 KiB to a file", "`ulimit -f unlimited`"),
    ],
)
def test_the_limit_and_the_mend_are_named(
    session_factory: Callable[..., Session], tmp_path: Path, limit: str, named: str, mend: str
) -> None:
    session = session_factory(Files(tmp_path / "source").add_many(1, 100).root)
    done = limited(session, limit, "start")
    assert done.returncode in (1, 3)
    assert done.stderr.startswith("monarch: ")
    assert done.stderr.endswith(f"a process may {named} here; raise the limit: {mend}\n")
    assert done.stderr.count("\n") == 1
    assert not session.connection.runs()


def test_the_command_of_a_run_goes_on(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    session = session_factory(Files(tmp_path / "source").add_many(1, 100).root)
    done = limited(session, "-n 10", "run", "-q", "echo", "done")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "only 10 open files here; raise the limit: `ulimit -n 256` or more;" in done.stderr
