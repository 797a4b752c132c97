"""Tests `monarch env`, whose output is evaluated by shells, and `monarch` commands that are started
under the library."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from cli.conftest import Monarch
from support.session import Session, wait_until

from monarch_py.native import LIBRARY

SHOW = 'import os; print(os.environ.get("LD_PRELOAD")); print(os.environ.get("MONARCH_CONFIG"))'


def shell(script: str, session: Session, **more: str) -> list[str]:
    """Runs a script in a shell that was not started under the library. Returns the lines that it
    prints."""
    environment = session.env(preload=False, **more)
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"set -e\n{script}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


# --- the lines for a job script -----------------------------------------------------------------


def test_the_librarys_path(monarch: Monarch) -> None:
    assert monarch("env", "--library").stdout == f"{LIBRARY}\n"


def test_without_a_configuration_only_the_library_is_exported(monarch: Monarch) -> None:
    lines = monarch("env").stdout.splitlines()
    assert lines == [f'export LD_PRELOAD={LIBRARY}"${{LD_PRELOAD:+:$LD_PRELOAD}}"']


def test_a_directory_is_no_configuration(monarch: Monarch, tmp_path: Path) -> None:
    done = monarch("env", "-c", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"monarch: {tmp_path}: the configuration cannot be read ")


def test_a_mistake_is_told_before_the_job_starts(monarch: Monarch, tmp_path: Path) -> None:
    """`monarch env` warns of a mistake in the configuration. It still prints the lines for the job
    script, because a configuration that cannot work on this node may work on the job's nodes."""
    config = tmp_path / "tiers.yaml"
    text = "sources: [/pfs]\n{}: [{{mount_point: /scratch/$JOB, max_storage_quota: 1GiB}}]\n"
    for key, said in (
        ("hierarchi", "hierarchi: unknown key; did you mean 'hierarchy'?"),
        ("hierarchy", "hierarchy[0].mount_point: the variable JOB is not set in the environment"),
    ):
        config.write_text(text.format(key))
        done = monarch("env", "-c", str(config))
        assert done.returncode == 0
        assert done.stdout.splitlines()[1] == f"export MONARCH_CONFIG={config}"
        assert done.stderr.startswith(f"monarch: warning: {config}:2: {said}")
        assert done.stderr.count("\n") == 1
    assert monarch("env", "-c", str(config), JOB="7").stderr == ""


def test_the_lines_put_a_shells_programs_under_the_library(served: Session) -> None:
    """When a shell has evaluated the lines of `monarch env`, the programs that it starts run under
    the library. A configuration that was named by a relative path is exported with its absolute
    path, so that the path is also right after `cd`."""
    relative = os.path.relpath(served.config)
    lines = shell(
        f'eval "$(python -m monarch_py env -c {shlex.quote(relative)})"\n'
        f"cd /\npython -c {shlex.quote(SHOW)}\ncat {served.source}/d/c >/dev/null",
        served,
    )
    assert lines == [str(LIBRARY), str(served.config)]
    assert served.totals()["hits"] == 1


def test_other_preloads_are_kept_behind_ours(session: Session, tmp_path: Path) -> None:
    other = tmp_path / "libother.so"
    shutil.copy(LIBRARY, other)
    lines = shell(
        f'eval "$(env -u LD_PRELOAD python -m monarch_py env)"\npython -c {shlex.quote(SHOW)}',
        session,
        LD_PRELOAD=str(other),
    )
    assert lines[0] == f"{LIBRARY}:{other}"


def test_the_lines_are_taken_back(session: Session) -> None:
    ours = f'eval "$(python -m monarch_py env -c {shlex.quote(str(session.config))})" 2>/dev/null\n'
    back = 'eval "$(python -m monarch_py env --unset 2>/dev/null)"\n'
    show = f"python -c {shlex.quote(SHOW)}"
    assert shell(f"{ours}{back}{show}", session) == ["None", "None"]


# --- under a module -------------------------------------------------------------------------------


def test_commands_leave_the_library_that_a_module_puts_before_them(
    session_factory: Callable[..., Session], tree: Path
) -> None:
    """If a `monarch` command is started under the library, it executes itself again without the
    library. Otherwise, a daemon's reads of the source would be served from the daemon's own
    copies."""
    session = session_factory(tree)
    with session.log.open("ab") as log:
        session.daemon = subprocess.Popen(
            session.command("serve"), env=session.env(), stdout=log, stderr=log
        )
    wait_until(session.connection.runs, what="the daemon's start")
    maps = Path(f"/proc/{session.daemon.pid}/maps").read_text()
    assert "libmonarch.so" not in maps
    session.wait_all_present()
    done = session.run([*session.command("verify"), "--source"])
    assert done.returncode == 0, done.stdout + done.stderr
