"""Runs the scripts for Slurm's prolog and epilog without Slurm. The scripts call a substitute for
the command `monarch`, which records its calls."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.session import wait_until
from support.slurm import SCRIPTS

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="Slurm runs these scripts as root")

JOB, UID = "17", "0"


class Node:
    """The scripts with short time limits, and the directory in which they record jobs."""

    def __init__(self, place: Path) -> None:
        self.place, self.jobs = place, place / "jobs" / UID
        self.said = place / "said"
        self.command("")
        for name, limits in (
            ("prolog", {"-w 120": "-w 0.2"}),
            ("epilog", {"-w 120": "-w 0.2", "-k 10 100": "-k 0.1 0.2"}),
        ):
            text = (SCRIPTS / name).read_text()
            for limit, short in limits.items():
                assert limit in text
                text = text.replace(limit, short)
            script = place / "share" / "monarch" / "slurm" / name
            script.parent.mkdir(parents=True, exist_ok=True)
            script.write_text(text)
            shutil.copymode(SCRIPTS / name, script)

    def command(self, then: str) -> None:
        """Writes a command `monarch`. It is a shell script that records its arguments and Python's
        environment variables, and then runs the shell commands `then`."""
        noted = '"$@" ${PYTHONNOUSERSITE-} ${PYTHONHOME-} ${PYTHONPATH-}'
        file = self.place / "bin" / "monarch"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\necho {noted} >>{self.said}\n{then}\n")
        file.chmod(0o755)

    def run(self, name: str, **more: str) -> list[str]:
        """Runs a script. Returns the calls of the command `monarch`, a line for each."""
        self.said.unlink(missing_ok=True)
        env = {
            "SLURM_JOB_ID": JOB,
            "SLURM_JOB_UID": UID,
            "SLURM_JOB_USER": "root",
            "MONARCH_JOBS": str(self.place / "jobs"),
            "MONARCH_CONFIG": "/etc/tiers.yaml",
            **more,
        }
        script = self.place / "share" / "monarch" / "slurm" / name
        subprocess.run([script], env=env, check=True, timeout=30)
        return self.said.read_text().splitlines() if self.said.exists() else []

    @contextmanager
    def locked(self) -> Iterator[None]:
        self.jobs.mkdir(parents=True, exist_ok=True)
        with open(self.jobs / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def noted(self) -> set[str]:
        return {path.name for path in self.jobs.iterdir()} - {"lock"}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_job_is_noted_from_its_prolog_to_its_epilog(node: Node) -> None:
    assert node.run("prolog") == ["start --alone 1"]
    assert node.noted() == {JOB}
    node.run("prolog", SLURM_JOB_ID="18")
    assert node.run("epilog") == ["sweep 1"]
    assert node.noted() == {"18"}
    assert node.run("epilog", SLURM_JOB_ID="18") == ["sweep --stop 1"]


def test_a_lock_that_is_not_to_be_had(node: Node) -> None:
    """While another process holds the lock, jobs are still recorded, but no daemon is started or
    stopped."""
    with node.locked():
        assert node.run("prolog") == []
        assert node.noted() == {JOB}
        assert node.run("epilog") == ["sweep 1"]
        assert node.noted() == set()


def test_a_command_that_hangs_holds_neither_the_node_nor_the_lock(node: Node) -> None:
    """The epilog starts a command, and a process of this command does not end. The epilog
    nevertheless returns and frees the lock. The process has its own process group, so the epilog's
    signals do not reach it. A process that waits for a hanging file system would survive these
    signals too."""
    node.command(f"setsid sleep 600 &\necho $! >{node.place}/pid\nwait")
    assert node.run("epilog") == ["sweep --stop 1"]
    hung = int((node.place / "pid").read_text())
    try:
        assert Path(f"/proc/{hung}").exists()
        node.command("")
        assert node.run("prolog") == ["start --alone 1"]
    finally:
        os.kill(hung, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{hung}").exists(), what="the end")


def test_the_users_python_is_not_used(node: Node) -> None:
    own = {"PYTHONHOME": "/home", "PYTHONPATH": "/path"}
    assert node.run("prolog", **own) == ["start --alone 1"]
    assert node.run("epilog", **own) == ["sweep --stop 1"]
