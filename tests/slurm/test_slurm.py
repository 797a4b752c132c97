"""Runs Monarch's batch scripts (docs/slurm.md) as a user without root's rights, under Slurm on
several nodes."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
import yaml
from cluster.conftest import why_no_mpi
from support.draws import sized
from support.files import make_tree
from support.machines import Machines, why_no_machines
from support.session import wait_until
from support.slurm import SCRIPTS, Slurm, why_no_slurm

from monarch_py.daemon.copies.copies import TIME_STEP_S

pytestmark = pytest.mark.slurm

COUNT = sized(2, 3)
NAMES = [f"node{number}" for number in range(COUNT)]
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


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One tree of files for all tests. Monarch keeps no copy of a file that has just changed, so a
    test with new files would have to wait."""
    return make_tree(tmp_path_factory.mktemp("tree") / "source")


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


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A directory for the variable PATH, with the command `monarch` of this checkout."""
    command = tmp_path / "bin" / "monarch"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m monarch_py "$@"\n')
    command.chmod(0o755)
    return command.parent


class Jobs:
    """Batch jobs of a user on the nodes.

    The scripts of all jobs run in the same directory, and write their output to the file `said`
    there.
    """

    def __init__(self, slurm: Slurm, directory: Path, config: Path, commands: Path) -> None:
        self.slurm, self.directory, self.config = slurm, directory, config
        self._path = f"{commands}:{os.environ['PATH']}"

    def submit(self, *words: str | Path, nodes: int = COUNT, **environment: str) -> str:
        """Submits a batch script with its arguments. Returns the job's number."""
        env = {**self.slurm.env(os.environ), "MONARCH_CONFIG": str(self.config), "PATH": self._path}
        env.pop("LD_PRELOAD", None)
        said = f"--output={self.directory / 'said'}"
        options = ["--parsable", f"--nodes={nodes}", "--ntasks-per-node=2", said]
        done = self.slurm.run("sbatch", *options, *words, **env, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def script(self, name: str, text: str) -> Path:
        file = self.directory / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
        return file

    def finish(self, job: str) -> str:
        """Waits for the end of a job. Returns its output."""
        self.slurm.wait_gone(job)
        return (self.directory / "said").read_text()

    def copies(self, tier: str = "/dev/shm") -> str:
        """Returns the names of the copies in the tiers of all nodes."""
        look = f"ls {tier}/monarch-*/c"
        return "".join(self.slurm.on(node, "sh", "-c", look).stdout for node in range(len(NAMES)))


@pytest.fixture
def jobs(slurm: Slurm, tmp_path: Path, config: Path, commands: Path) -> Jobs:
    return Jobs(slurm, tmp_path, config, commands)


@pytest.mark.long  # test_a_daemon_that_dies_takes_no_other_along_and_can_come_back checks the same
def test_daemons_that_know_of_each_other(jobs: Jobs) -> None:
    seen = jobs.directory / "seen"
    look = jobs.script("look", f"monarch status --all --json >{seen}; exit 7")
    job = jobs.submit(SCRIPTS / "job", look, MONARCH_MPI="pmi2")
    said = jobs.finish(job)
    assert f"{COUNT} daemons serve " in said, said
    nodes = json.loads(seen.read_text())["nodes"]
    assert [node["name"] for node in nodes] == NAMES
    assert [node["answers"] for node in nodes] == [True] * COUNT
    assert jobs.slurm.exit_code(job) == "7:0"
    assert daemons(jobs.config) == []
    assert jobs.copies() == ""


def test_a_wrong_configuration_ends_the_job_before_its_command(jobs: Jobs) -> None:
    jobs.config.write_text(jobs.config.read_text() + "blok_size: 4MiB\n")
    job = jobs.submit(SCRIPTS / "job", "echo", "the command", nodes=1)
    said = jobs.finish(job)
    (sentence,) = [line for line in said.splitlines() if "error: TMPDIR" not in line]
    assert sentence.startswith(f"monarch: {jobs.config}:"), said
    assert "block_size" in sentence
    assert jobs.slurm.exit_code(job) == "2:0"


# This test needs --long, because other tests cover most of it:
# test_the_first_task_of_a_step_starts_the_daemon runs readers under srun, and tests/cluster runs
# readers under mpiexec.
@pytest.mark.long
def test_every_launcher_starts_readers(jobs: Jobs, tree: Path) -> None:
    read = jobs.script("read", f"find {tree} -type f -exec cat {{}} + | sha256sum")
    torchrun = f"torchrun --log-dir={jobs.directory} --no-python --nproc-per-node=2"
    launchers = ["srun --ntasks=2", "mpiexec -n 2", torchrun]
    if shutil.which("torchrun") is None:
        pytest.skip("torchrun is missing: install the extra 'torch'")
    seen = [jobs.directory / f"seen{n}" for n in range(len(launchers) + 1)]
    look = [f"monarch status --json >{file}" for file in seen]
    lines = ["monarch warm", look[0]]
    for launcher, after in zip(launchers, look[1:], strict=True):
        lines += [f"{launcher} {read} 2>/dev/null", after]
    train = jobs.script("train", "\n".join(lines))
    said = jobs.finish(jobs.submit(SCRIPTS / "job", train, nodes=1))
    sums = re.findall("[0-9a-f]{64}", said)
    assert (len(sums), len(set(sums))) == (2 * len(launchers), 1), said
    hits = [json.loads(file.read_text())["totals"]["hits"] for file in seen]
    assert [later - before for before, later in pairwise(hits)] == [2 * FILES] * len(launchers)
    assert daemons(jobs.config) == []


def test_the_first_task_of_a_step_starts_the_daemon(jobs: Jobs, tree: Path) -> None:
    """The first task of a step starts a daemon, which keeps running after the end of the step. The
    next step finds this daemon. A single step may not be enough. If the first file that a task
    opens is not in a source, a daemon is started only if the task has a file of a source open by
    the time the configuration has been read. So the job repeats the first step until a daemon
    runs."""
    jobs.config.write_text(jobs.config.read_text() + "autostart: true\n")
    seen = jobs.directory / "seen"
    read = jobs.script("read", f"find {tree} -type f -exec cat {{}} + | sha256sum")
    train = jobs.script(
        "train",
        f"""export LD_PRELOAD="$(monarch env --library)"
until monarch warm 2>/dev/null; do srun --ntasks=2 {read}; done
srun --ntasks=2 {read}
monarch status --json >{seen}""",
    )
    said = jobs.finish(jobs.submit(train, nodes=1))
    sums = re.findall("[0-9a-f]{64}", said)
    assert len(sums) >= 4, said
    assert len(set(sums)) == 1, said
    assert json.loads(seen.read_text())["totals"]["hits"] >= 2 * FILES
    assert len(daemons(jobs.config)) == 1


def test_two_jobs_on_a_node_share_a_daemon(jobs: Jobs, tree: Path, tmp_path: Path) -> None:
    """Two jobs run on a node. The second job adds its dataset to the daemon of the first job. When
    the first job and its daemon have ended, the second job gets a daemon of its own."""
    text = (SCRIPTS / "job").read_text()
    # The second job's script checks every 5 s whether the daemon of another job has ended.
    assert "sleep 5;" in text
    often = jobs.directory / "job"
    often.write_text(text.replace("sleep 5;", "sleep 1;"))
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_bytes(b"x" * 4096)
    up, after, enough = (jobs.directory / name for name in ("up", "after", "enough"))
    waits = jobs.script("waits", f"touch {up}; until [ -e {enough} ]; do sleep 0.1; done")
    first = jobs.submit(SCRIPTS / "job", waits, nodes=1)
    wait_until(up.exists, timeout=60, what="the first job")

    seen = jobs.directory / "seen"
    look = "monarch status --json"
    second = jobs.script(
        "second",
        f"""{look} >{seen}.new; mv {seen}.new {seen}
pid=$(grep -o '"pid": [0-9]*' {seen})
while kill -0 "${{pid#* }}"; do sleep 0.2; done
until {look} >{after}.new && ! grep -q "$pid" {after}.new; do sleep 0.5; done
mv {after}.new {after}""",
    )
    job = jobs.submit(often, second, nodes=1, MONARCH_SOURCE=str(other))
    wait_until(seen.exists, timeout=60, what="the second job")
    enough.touch()
    jobs.slurm.wait_gone(first)
    said = jobs.finish(job)
    served = [
        [each["path"] for each in json.loads(f.read_text())["sources"]] for f in (seen, after)
    ]
    assert served == [[str(tree), str(other)], [str(other)]], said
    assert daemons(jobs.config) == []
    assert jobs.copies() == ""


# This test needs --long, because test_slurm_site.py ends a job and its daemon in every run.
@pytest.mark.long
def test_a_cancelled_job_leaves_nothing(jobs: Jobs) -> None:
    """Each daemon has shared memory and copies on its own node. After scancel, the daemon must
    remove both before Slurm kills it. Slurm kills it after the time in Slurm's setting KillWait."""
    up = jobs.directory / "up"
    script = jobs.script("train", f"srun -n {COUNT} -N {COUNT} monarch warm; touch {up}; sleep 60")
    job = jobs.submit(SCRIPTS / "job", script)
    wait_until(up.exists, timeout=60, what="the copies")
    assert len(jobs.copies().split()) == len(NAMES) * FILES
    jobs.slurm.run("scancel", job)
    said = jobs.finish(job)
    assert "CANCELLED" in said
    assert daemons(jobs.config) == []
    assert jobs.copies() == ""


def test_a_daemon_that_dies_takes_no_other_along_and_can_come_back(jobs: Jobs) -> None:
    names = "seen", "go", "after", "again", "enough"
    seen, go, after, again, enough = (jobs.directory / name for name in names)
    look = "monarch status --all --json"
    step = f"srun --job-name=monarch-serve --overlap --wait=0 --mpi=pmi2 -n{COUNT}"
    serve = f"{step} --ntasks-per-node=1"
    # The train script repeats the step that has started the daemons. Only the dead daemon is
    # started again; on the other nodes, the task of the step ends at once. The step prints a line
    # with the number of daemons that were already serving, but the new daemon may answer before
    # this line is printed. So the job waits for the file `enough`, which the test makes when it has
    # seen the line.
    train = jobs.script(
        "train",
        f"""{look} >{seen}.new; mv {seen}.new {seen}
until [ -e {go} ]; do sleep 0.1; done
{look} >{after}
{serve} monarch serve &
until {look} >{again}; do sleep 0.5; done
until [ -e {enough} ]; do sleep 0.1; done
exit 7""",
    )
    job = jobs.submit(SCRIPTS / "job", train, MONARCH_MPI="pmi2")
    wait_until(seen.exists, timeout=60, what="the daemons")
    nodes = json.loads(seen.read_text())["nodes"]
    assert [node["name"] for node in nodes] == NAMES
    assert [node["answers"] for node in nodes] == [True] * COUNT
    victim = psutil.Process(nodes[1]["status"]["pid"])
    victim.kill()
    # Wait until Slurm has noticed that the victim's task has ended.
    said_of = (jobs.directory / "said").read_text
    wait_until(lambda: "task 1: Exited with exit code" in said_of(), what="the end of its step")
    go.touch()
    try:
        wait_until(
            lambda: f"{COUNT - 1} of {COUNT} daemons already served " in said_of(),
            timeout=60,
            what="a second step",
        )
    except AssertionError as late:
        raise AssertionError(f"{late}: {said_of()}, {after.exists()=}, {again.exists()=}") from late
    enough.touch()
    said = jobs.finish(job)
    nodes = json.loads(after.read_text())["nodes"]
    assert [node["why"] for node in nodes] == ["", "cannot be reached", ""][:COUNT], said
    assert "monarch: the daemon has ended" in said, said
    nodes = json.loads(again.read_text())["nodes"]
    assert [node["why"] for node in nodes] == [""] * COUNT, said
    assert f"{COUNT} daemons serve " in said, said
    assert jobs.slurm.exit_code(job) == "7:0"
    assert daemons(jobs.config) == []
    assert jobs.copies() == ""


def test_copies_are_staged_while_the_job_waits(jobs: Jobs, tree: Path) -> None:
    tier = jobs.directory / "tier"
    tier.mkdir()
    document = yaml.safe_load(jobs.config.read_text())
    level = {"mount_point": str(tier), "max_storage_quota": "8MiB", "persistent": True}
    jobs.config.write_text(yaml.safe_dump({**document, "hierarchy": [level]}))
    # If a file has just changed, Monarch does not keep its copy for the next job.
    changed = max(path.stat().st_ctime for path in tree.rglob("*"))
    wait_until(lambda: time.time() > changed + TIME_STEP_S, what="files that are old enough")
    later, report = jobs.directory / "later", jobs.directory / "report"
    # `warm` waits until the daemon has found the copies of the earlier job.
    read = f"monarch warm && find {tree} -type f -exec cat {{}} + >/dev/null"
    train = jobs.script(
        "train", f"#SBATCH --output={later}\nmonarch run -q --json {report} -- sh -c '{read}'"
    )
    said = jobs.finish(jobs.submit(SCRIPTS / "stage", train, nodes=1))
    (waiting,) = re.findall(r"Submitted batch job (\d+)", said)
    jobs.finish(waiting)
    assert said.count(f"{FILES} files (") == 1, said
    assert "files (" in later.read_text()
    status = json.loads(report.read_text())
    assert status["totals"]["fills"] == 0
    run = status["run"]
    assert (run["totals"]["hits"], run["totals"]["opens"]) == (FILES, FILES)


# This test needs --long, because tests/cluster/test_refusals.py tests the same under mpiexec in
# every run.
@pytest.mark.long
def test_a_node_that_cannot_go_on_ends_the_step(jobs: Jobs) -> None:
    jobs.config.write_text(jobs.config.read_text() + "peers: {interface: no0}\n")
    serve = "srun --overlap --mpi=pmi2 --ntasks-per-node=1 monarch serve"
    said = jobs.finish(jobs.submit(jobs.script("job.sh", f'{serve}\necho "status $?"')))
    assert "status 2\n" in said, said
    assert said.count("peers.interface: 'no0' has no address on ") == COUNT, said
    assert daemons(jobs.config) == []
