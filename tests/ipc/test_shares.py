"""The lock `turn`, which is held while a daemon starts or ends, and the notes by which a run
records its command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch_py.commands import run as job
from monarch_py.commands.run import run_job
from monarch_py.errors import SessionError
from monarch_py.ipc.session import SessionDir
from monarch_py.ipc.shares import Shares
from monarch_py.util.processes import Identity


def test_a_turn_that_is_kept_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    first, second = (Shares(SessionDir(tmp_path / "session")) for _ in range(2))
    first.take_turn()
    with pytest.raises(SessionError, match=r"/turn has been locked for 0 s .* `fuser -v .*/turn`"):
        second.take_turn(limit_s=0.1)
    first.leave_turn()
    second.take_turn(limit_s=0.1)
    for each in (first, second):
        each.close()


def test_a_run_that_does_not_get_its_turn_runs_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "tiers.yaml"
    config.touch()
    monkeypatch.setenv("MONARCH_SHM", str(tmp_path))
    monkeypatch.setattr(Shares.take_turn, "__defaults__", (0.1,))
    other = Shares(SessionDir.of(config))
    other.take_turn()
    outcome = run_job(config, ["sh", "-c", "echo RAN; exit 7"])
    said = capfd.readouterr()
    assert (outcome.exit_status, outcome.report, said.out) == (7, None, "RAN\n")
    (line,) = said.err.splitlines()
    assert line == f"monarch: {outcome.problem}; the command reads from the source"
    other.close()


def test_a_command_is_never_taken_for_the_daemon(tmp_path: Path) -> None:
    shares = Shares(SessionDir(tmp_path / "session"))
    command = Identity.of(os.getppid())
    for daemon in (None, Identity(1, 2)):
        shares.note_daemon(daemon)
        shares.note_command(command)
        assert (shares.daemon(), shares.has_command()) == (daemon, True)
    shares.close()


def test_a_command_is_noted_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The child process of `monarch run` notes the run's command before it executes the command. So
    the daemon serves the command even if `monarch run` is killed as soon as the command has
    started."""
    note = Shares.note_command

    def note_in_child(shares: Shares, command: Identity) -> None:
        if os.getpid() == command.pid:
            note(shares, command)

    config = tmp_path / "tiers.yaml"
    config.touch()
    monkeypatch.setenv("MONARCH_SHM", str(tmp_path))
    monkeypatch.setattr(job, "spawn", lambda *_args, **_options: None)
    monkeypatch.setattr(Shares, "note_command", note_in_child)
    users = SessionDir.of(config).path / "users"
    run_job(config, ["sh", "-c", f'echo $$; cat "{users}"'])
    pid, _, *noted = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in noted] == [str(os.getpid()), pid]
