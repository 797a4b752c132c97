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
from bringup.conftest import why_no_mpi
from support.machines import Machines, why_no_machines
from support.session import wait_until
from support.slurm import Slurm, why_no_slurm

pytestmark = pytest.mark.slurm

PAGE = Path(__file__).parents[2] / "docs" / "nodes.md"
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


def run_job(slurm: Slurm, directory: Path, config: Path, script: str) -> str:
    """Runs a batch script to its end; what it said."""
    said = directory / "said"
    script = script.replace("tiers.yaml", str(config))
    script = script.replace("monarch ", f"{sys.executable} -m monarch_py ")
    file = directory / "job.sh"
    file.write_text(script)
    done = slurm.run("sbatch", "--parsable", f"--output={said}", file)
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    wait_until(
        lambda: job not in slurm.run("squeue", "--noheader", "--format=%A").stdout.split(),
        timeout=60,
        what="the end of the job",
        every=0.1,
    )
    return said.read_text()


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
