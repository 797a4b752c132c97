"""Three slurmd: the daemons are a step of the job, as docs/nodes.md has it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import yaml
from cluster.conftest import why_no_mpi
from support.machines import Machines, why_no_machines
from support.session import wait_until
from support.slurm import Slurm, why_no_slurm

pytestmark = pytest.mark.slurm

DOCS = Path(__file__).parents[2] / "docs"
PAGE, ADMINISTRATORS = DOCS / "nodes.md", DOCS / "administrators.md"
NAMES = ["node0", "node1", "node2"]
FILES = 17


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if missing := why_no_slurm() or why_no_mpi() or why_no_machines():
        pytest.skip(missing)
    directory = tmp_path_factory.mktemp("slurm")
    with (
        Machines(directory / "machines", len(NAMES)) as machines,
        Slurm(machines, directory / "slurm") as made,
    ):
        yield made


def daemons(config: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "monarch" in (words := " ".join(process.cmdline())) and str(config) in words:
                found.append(process)
    return found


@pytest.fixture
def config(tmp_path: Path, tree: Path) -> Iterator[Path]:
    tier = {"mount_point": "/dev/shm", "max_storage_quota": "8MiB"}
    file = tmp_path / "tiers.yaml"
    file.write_text(yaml.safe_dump({"sources": [str(tree)], "hierarchy": [tier]}))
    yield file
    left = daemons(file)
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=10)


def job_of_the_page() -> str:
    """The batch script that docs/nodes.md shows."""
    (script,) = re.findall(r"```sh\n(#!/bin/bash\n.*?)```", PAGE.read_text(), re.DOTALL)
    return str(script)


def submit(slurm: Slurm, directory: Path, config: Path, script: str) -> str:
    """Hands a batch script in; what it says goes to the file `said`. Returns the job's number."""
    script = script.replace("tiers.yaml", str(config))
    script = script.replace("monarch ", f"{sys.executable} -m monarch_py ")
    file = directory / "job.sh"
    file.write_text(script)
    done = slurm.run("sbatch", "--parsable", f"--output={directory / 'said'}", file)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def finish(slurm: Slurm, directory: Path, job: str) -> str:
    """Waits for a job's end; what it said."""
    slurm.wait_gone(job)
    return (directory / "said").read_text()


def run_job(slurm: Slurm, directory: Path, config: Path, script: str) -> str:
    return finish(slurm, directory, submit(slurm, directory, config, script))


def test_the_job_of_the_page(slurm: Slurm, tmp_path: Path, config: Path) -> None:
    """Its training is one that says what all nodes see."""
    script = job_of_the_page()
    train = "srun python train.py"
    assert script.count(train) == 1
    assert script.count("--nodes=4") == 1
    seen = tmp_path / "seen"
    look = f"srun --overlap --nodes=1 --ntasks=1 monarch status --all --json -c tiers.yaml >{seen}"
    script = script.replace(train, look).replace("--nodes=4", "--nodes=3")
    said = run_job(slurm, tmp_path, config, script + "wait && echo served to the end\n")
    assert "3 daemons serve " in said, said
    assert "served to the end" in said, said
    nodes = json.loads(seen.read_text())["nodes"]
    assert [node["name"] for node in nodes] == NAMES
    assert [node["answers"] for node in nodes] == [True] * 3
    assert daemons(config) == []


def test_the_end_of_the_job_ends_the_daemons(slurm: Slurm, tmp_path: Path, config: Path) -> None:
    script = job_of_the_page().partition("srun python train.py")[0].replace("=4", "=3")
    said = run_job(slurm, tmp_path, config, script + "echo up\n")
    assert "up\n" in said, said
    wait_until(lambda: daemons(config) == [], what="the daemons' end")


def test_a_daemon_that_dies_takes_no_other_along_and_can_come_back(
    slurm: Slurm, tmp_path: Path, config: Path
) -> None:
    names = "seen", "go", "after", "again", "enough"
    seen, go, after, again, enough = (tmp_path / name for name in names)
    script = job_of_the_page().partition("srun python train.py")[0].replace("=4", "=3")
    look = "monarch status --all --json -c tiers.yaml"
    script += f"{look} >{seen}.new; mv {seen}.new {seen}; until [ -e {go} ]; do sleep 0.1; done\n"
    script += f"{look} >{after}\n"
    # The same step again, of which the tasks where a daemon serves end at once.
    (serve,) = re.findall(r"^srun .*? monarch serve .*?&$", script, re.MULTILINE)
    script += f"{serve}\nuntil {look} >{again}; do sleep 0.5; done\n"
    # The daemon answers before its step has said so, and the job's end would end the step.
    script += f"until [ -e {enough} ]; do sleep 0.1; done\n"
    job = submit(slurm, tmp_path, config, script)
    wait_until(seen.exists, timeout=60, what="the daemons")
    victim = psutil.Process(json.loads(seen.read_text())["nodes"][1]["status"]["pid"])
    victim.kill()
    # Its `serve` has ended, and Slurm knows.
    said_of = (tmp_path / "said").read_text
    wait_until(lambda: "task 1: Exited with exit code" in said_of(), what="the end of its step")
    go.touch()
    try:
        wait_until(
            lambda: "2 of 3 daemons already served " in said_of(), timeout=60, what="a second step"
        )
    except AssertionError as late:
        raise AssertionError(f"{late}: {said_of()}, {after.exists()=}, {again.exists()=}") from late
    enough.touch()
    said = finish(slurm, tmp_path, job)
    nodes = json.loads(after.read_text())["nodes"]
    assert [node["why"] for node in nodes] == ["", "cannot be reached", ""], said
    assert "monarch: the daemon has ended" in said, said
    nodes = json.loads(again.read_text())["nodes"]
    assert [node["why"] for node in nodes] == ["", "", ""], said


@pytest.mark.parametrize("command", ["start", "serve"])
def test_daemons_by_themselves(slurm: Slurm, tmp_path: Path, config: Path, command: str) -> None:
    """As the administrators' page has it. Each has its shared memory in that of its node."""
    scripts = re.findall(r"```sh\n(#!/bin/sh\n.*?)```", ADMINISTRATORS.read_text(), re.DOTALL)
    (script,) = [each for each in scripts if f" monarch {command} --alone" in each]
    train = re.search(r"^srun (--overlap )?python train.py$", script, re.MULTILINE)
    assert train is not None
    look = "srun --overlap --ntasks=3 --ntasks-per-node=1 monarch status --json -c tiers.yaml"
    script = script.replace(train[0], f"{look} >{tmp_path / 'seen'}")
    script = script.replace("nodes=4", "nodes=3").replace("ntasks=4", "ntasks=3")
    said = run_job(slurm, tmp_path, config, script.replace("per-node=8", "per-node=2"))
    seen = (tmp_path / "seen").read_text()
    assert len(set(re.findall(r'"pid": (\d+)', seen))) == 3, said
    assert said.count("stopped (process ") == 3, said
    assert daemons(config) == []


def test_a_node_that_cannot_go_on_ends_the_step(slurm: Slurm, tmp_path: Path, config: Path) -> None:
    config.write_text(config.read_text() + "peers: {interface: no0}\n")
    script = (
        "#!/bin/bash\n#SBATCH --nodes=3 --ntasks-per-node=1\n"
        "srun --overlap --mpi=pmi2 --ntasks-per-node=1 monarch serve -c tiers.yaml\n"
        'echo "status $?"\n'
    )
    said = run_job(slurm, tmp_path, config, script)
    assert "status 2\n" in said, said
    assert said.count("peers.interface: 'no0' has no address on ") == 3, said
    assert daemons(config) == []
