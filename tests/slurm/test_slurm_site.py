"""A site's prolog, epilog and task prolog, under a Slurm that kills a user's jobs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.files import Files
from support.machines import Machines, why_no_machines
from support.session import wait_until
from support.slurm import SCRIPTS, Slurm, why_no_slurm
from support.users import ALICE, as_user, install_for_all, open_place

from monarch_py.native import LIBRARY

pytestmark = pytest.mark.slurm

COUNT = 8
# The name of the directory that the user's daemons make in shared memory and in each tier.
USER = f"monarch-{ALICE}"


class Site:
    """An installation of Monarch, a Slurm that calls Monarch's scripts, and a user."""

    def __init__(self, place: Path, stack: ExitStack) -> None:
        self.place = place
        self.prefix = place / "prefix"
        install_for_all(self.prefix)
        shutil.copytree(SCRIPTS, self.prefix / "share" / "monarch" / "slurm")
        self.files = Files(place / "source").add_many(COUNT, 3000)
        self.home = place / "home"
        self.home.mkdir()
        os.chown(self.home, ALICE, ALICE)
        self.config = self.configuration("site", "1MiB")
        for name in ("prolog", "epilog", "task_prolog"):
            self._wrap(name)
        self.machines = stack.enter_context(Machines(place / "machines", 1))
        settings = f"Prolog={place}/prolog\nEpilog={place}/epilog\nTaskProlog={place}/task_prolog"
        self.slurm = stack.enter_context(Slurm(self.machines, place / "slurm", settings))

    def configuration(self, name: str, *quotas: str) -> Path:
        """Writes a configuration with a tier for each quota; the second tier is persistent."""
        levels = []
        for number, quota in enumerate(quotas):
            tier = self.home / f"{name}{number}"
            tier.mkdir()
            os.chown(tier, ALICE, ALICE)
            level = {"mount_point": str(tier), "max_storage_quota": quota}
            levels.append({**level, "persistent": number == 1})
        file = self.place / f"{name}.yaml"
        document = {"sources": [str(self.files.root)], "hierarchy": levels}
        file.write_text(yaml.safe_dump(document))
        return file

    def _wrap(self, name: str) -> None:
        """Writes a script like that of an administrator: it sets the configuration and then runs
        Monarch's script. The nodes share the directory /run, so the script sets MONARCH_JOBS to a
        different directory on each node."""
        script = self.place / name
        script.write_text(
            f"#!/bin/sh\nMONARCH_CONFIG=${{MONARCH_CONFIG:-{self.config}}}"
            f" MONARCH_JOBS={self.place}/jobs-$SLURMD_NODENAME\n"
            "export MONARCH_CONFIG MONARCH_JOBS\n"
            f"exec {self.prefix}/share/monarch/slurm/{name}\n"
        )
        script.chmod(0o755)

    def run(self, *words: str | Path) -> Any:
        """Runs a command as the user, on the node."""
        path = f"{self.prefix}/bin:{os.environ['PATH']}"
        env = {**self.slurm.env(os.environ), "PATH": path, "HOME": str(self.home), "TMPDIR": "/tmp"}
        env.pop("LD_PRELOAD", None)
        return self.machines.run(0, *as_user(ALICE, *words), env=env)

    def submit(self, name: str, script: str, *options: str) -> str:
        """Submits a job that runs the script and then prints `up`. Waits for `up`, and returns the
        job's number."""
        said = self.home / f"{name}.said"
        file = self.place / f"{name}.sh"
        file.write_text(f"#!/bin/sh\n{script}\necho up\nexec sleep 60\n")
        done = self.run("sbatch", "--parsable", f"--output={said}", *options, file)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: said.exists() and "up\n" in said.read_text(), what=f"job {name}")
        return str(done.stdout).strip()

    def kill(self, job: str) -> None:
        """Sends SIGKILL to all processes of the job. Returns after the epilog."""
        self.run("scancel", "--full", "--signal=KILL", job)
        self.slurm.wait_gone(job)

    def status(self) -> dict[str, Any]:
        """Returns the status of the site's daemon."""
        done = self.run("monarch", "status", "--json", "-c", self.config)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def copies(self, tier: str) -> list[Path]:
        return sorted((self.home / tier).glob(f"{USER}/c/*"))

    def in_shm(self) -> list[str]:
        done = self.machines.run(0, "ls", "-d", f"/dev/shm/{USER}", env=os.environ)
        return done.stdout.split()


place = pytest.fixture(open_place, scope="module")


@pytest.fixture(scope="module")
def site(place: Path) -> Iterator[Site]:
    if missing := why_no_slurm() or why_no_machines():
        pytest.skip(missing)
    with ExitStack() as stack:
        yield Site(place, stack)


def test_jobs_of_a_user_that_are_killed(site: Site) -> None:
    """Two jobs run on the node, and one is killed. What the killed job leaves behind is removed,
    except the copies in its persistent tier. The other job keeps its daemon and its copies."""
    other = site.submit("other", f"srun env >$HOME/env; srun cat {site.files.root}/* >/dev/null")
    environment = (site.home / "env").read_text().splitlines()
    assert f"MONARCH_CONFIG={site.config}" in environment
    assert f"LD_PRELOAD={LIBRARY}" in environment
    before = site.status()
    assert before["totals"]["opens"] == COUNT

    own = site.configuration("own", "32KiB", "1MiB")
    killed = site.submit(
        "killed",
        f"export MONARCH_CONFIG={own}; srun --overlap monarch serve --alone &\n"
        "until monarch status >/dev/null 2>&1; do sleep 0.5; done; monarch warm",
    )
    kept = site.copies("own1")
    assert len(site.copies("own0")) + len(kept) == COUNT
    assert kept
    site.kill(killed)
    assert site.copies("own0") == []
    assert site.copies("own1") == kept
    after = site.status()
    assert (after["pid"], after["tiers"]) == (before["pid"], before["tiers"])

    site.kill(other)
    assert site.copies("site0") == []
    assert site.in_shm() == []
    assert site.copies("own1") == kept
