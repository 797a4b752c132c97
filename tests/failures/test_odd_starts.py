"""Under unusual conditions, a command must behave the same with and without `monarch run`."""

from __future__ import annotations

import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.draws import cases
from support.files import Files
from support.session import Session, wait_until
from support.watch import open_by

# Maps the name of each condition to the shell code that creates it before the command starts.
ODD = {
    "umask 0777, no HOME": "umask 0777; unset HOME",
    "umask 0, hardly an environment": "umask 0; unset PATH LANG USER LOGNAME SHELL TERM",
    "as nohup starts it, a HOME for nothing": "trap '' HUP INT; exec </dev/null; HOME=/proc",
    "no standard input": "exec <&-",
    "no standard output": "exec >&-",
    "no standard error": "exec 2>&-",
    "none of the three": "exec <&- >&- 2>&-",
    "in a directory that is gone": "mkdir gone && cd gone && rmdir ../gone",
}


# Without --long, only these conditions are tested. They include at least one of each kind.
SOME_ODD = [
    "umask 0777, no HOME",
    "as nohup starts it, a HOME for nothing",
    "none of the three",
    "in a directory that is gone",
]


@pytest.mark.parametrize("odd", cases(ODD, SOME_ODD))
def test_it_is_as_without(
    session_factory: Callable[..., Session], tmp_path: Path, odd: str
) -> None:
    session = session_factory(Files(tmp_path / "source").add_many(3, 20_000).root)
    alone = ["/bin/sh", "-c", "umask; cat $0", str(session.source / "f00001")]

    def run(command: list[str]) -> tuple[int, bytes, bytes]:
        done = subprocess.run(
            ["/bin/sh", "-c", f'{ODD[odd]}; exec "$@"', "sh", *command],
            env=session.env(preload=False),
            cwd=session.directory,
            input=b"",
            capture_output=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    assert run(session.command("run", "-q", "--", *alone)) == run(alone)
    made = [*session.shm.rglob("*"), *session.tiers[0].glob("monarch-*")]
    assert len(made) >= 4
    for path in made:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert "Traceback" not in (session.paths.log).read_text()


@pytest.mark.parametrize("module", ["click", "yaml", "msgspec"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_modules_are_loaded(
    session_factory: Callable[..., Session], tree: Path, tmp_path: Path, module: str, number: int
) -> None:
    """If a signal arrives while modules are imported, the command ends without a message. In this
    test, the signal comes from a module that the test has put in the place of `module`."""
    session = session_factory(tree)
    (tmp_path / "trap").mkdir()
    text = f"import os, time\nos.kill(os.getpid(), {int(number)})\ntime.sleep(60)\n"
    (tmp_path / "trap" / f"{module}.py").write_text(text)
    done = session.run(
        session.command("start"), preload=False, env={"PYTHONPATH": str(tmp_path / "trap")}
    )
    assert (done.returncode, done.stdout, done.stderr) == (-number, "", "")


def test_an_interrupt_afterwards_is_the_commands(
    session_factory: Callable[..., Session], tree: Path
) -> None:
    session = session_factory(tree).start()
    assert session.daemon is not None
    session.daemon.send_signal(signal.SIGSTOP)
    with subprocess.Popen(
        session.command("status"),
        env=session.env(preload=False),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as status:
        wait_until(
            lambda: any("socket:" in path for path in open_by(status.pid)), what="the open socket"
        )
        status.send_signal(signal.SIGINT)
        out, err = status.communicate(timeout=30)
    assert (status.returncode, out, err.strip()) == (130, "", "monarch: interrupted")


@pytest.mark.parametrize("shm", ["not there", "a file"])
def test_the_command_runs_where_no_session_can_be_made(
    session_factory: Callable[..., Session], tmp_path: Path, shm: str
) -> None:
    session = session_factory(Files(tmp_path / "source").add_many(1, 20_000).root)
    place = tmp_path / shm
    if shm == "a file":
        place.touch()
    done = subprocess.run(
        session.command("run", "--", "echo", "RAN"),
        env={**session.env(preload=False), "MONARCH_SHM": str(place)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "RAN\n")
    first, last = done.stderr.splitlines()
    assert "; set MONARCH_SHM" in first
    assert first.endswith("; the command reads from the source")
    assert last == (
        "monarch: no daemon served this run, so Monarch gained nothing; the reason is printed above"
    )


def test_a_command_whose_name_the_kernel_cuts_within_a_letter(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    session = session_factory(Files(tmp_path / "source").add_many(1, 20_000).root)
    # The kernel cuts the name of a process to 15 bytes. For one of the two names, the cut is inside
    # a character that takes several bytes.
    for letters in ("", "x"):
        script = tmp_path / f"{letters}обучение-модели.sh"
        script.write_text("#!/bin/sh\necho RAN\n")
        script.chmod(0o755)
        done = session.monarch("run", "-q", "--", str(script))
        assert (done.returncode, done.stdout, done.stderr) == (0, "RAN\n", "")
