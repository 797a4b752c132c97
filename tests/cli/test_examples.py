"""Runs the examples in the help of the commands unchanged, except for their paths."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest
from cluster.conftest import why_no_mpi
from support.command_line import run_monarch
from support.command_tree import examples, leaves
from support.draws import cases
from support.reference import COMMANDS as MARK
from support.reference import REFERENCE, with_commands
from support.session import Session, wait_until

ROOT = Path(__file__).parents[2]
COMMANDS = leaves()
LINES = [line for context in COMMANDS.values() for line in examples(context.command)]
# The table of environment variables in the reference: name -> example.
VARIABLES: dict[str, str] = dict(
    re.findall(r"^\| `(MONARCH_\w+)` \|.*\| `(.*)` \|$", REFERENCE.read_text(), re.M)
)

# Commands that start a daemon, or that require that no daemon runs.
WITHOUT_DAEMON = ("calibrate", "clear", "run", "serve", "start")
STARTS_DAEMON = ("serve", "start")
ENDS_DAEMON = ("stop", "sweep")
WRITES_RUN = "test -e run.json || monarch run -c tiers.yaml --json run.json python train.py"
# command -> the line that writes the command's input file
BEFORE = {
    "plan make": "monarch plan index image_folder /pfs/imagenet/train -o train.npz",
    "plan show": "monarch plan make -c plan.yaml -o plan.npz",
    "advise report": WRITES_RUN,
    "report": WRITES_RUN,
    "simulate": "test -e mine.yaml || monarch calibrate -c tiers.yaml -o mine.yaml",
}
# A line that contains one of these characters is run by a shell.
SHELL = "|>$&"
PLACES = {
    "/pfs/imagenet": "imagenet",
    "/opt": ".",
    "/pfs": ".",
    "/dev/shm": "shm",
    "/var/lib/node_exporter": "node_exporter",
}
TRAIN = """
import pathlib

class Dataset:
    files = sorted(path for path in pathlib.Path("/pfs/imagenet").rglob("*") if path.is_file())

    def __len__(self):
        return len(self.files)

    def __getitem__(self, number):
        return self.files[number].read_bytes()[:5]

dataset = Dataset()
if __name__ == "__main__":
    assert [dataset[number] for number in range(6)].count(b"index") == 3
"""
PLAN = """
epochs: 2
parts:
- name: training
  dataset: /pfs/train.npz
  batch_size: 1
  sampler: {kind: RandomSampler, seed: 17}
"""


class Shell:
    """Runs example lines in the directory of a session. Paths in `PLACES` are replaced by paths in
    this directory."""

    def __init__(self, session: Session) -> None:
        self.session, self.place = session, session.directory
        for name in ("train/cat/0.png", "train/dog/1.png", "val/2.png"):
            file = self.place / "imagenet" / name
            file.parent.mkdir(parents=True)
            file.write_bytes(name.encode() * 100)
            file.with_suffix(".idx").write_bytes(b"index")
        self.write("train.py", self.here(TRAIN))
        self.write("plan.yaml", self.here(PLAN))
        self.write("bin/monarch", f'#!/bin/sh\nexec {sys.executable} -m monarch_py "$@"\n')
        (self.place / "bin/monarch").chmod(0o755)
        for name in ("coco", "modulefiles/monarch", "node_exporter"):
            (self.place / name).mkdir(parents=True)
        self.write("site.yaml", "scan_rate: 5000\n")
        self.write("old.yaml", (self.place / "tiers.yaml").read_text())
        path = os.pathsep.join([str(self.place / "bin"), os.environ["PATH"]])
        self.environment = session.env(preload=False, PATH=path, COLUMNS="100")

    def write(self, name: str, text: str) -> None:
        (self.place / name).parent.mkdir(exist_ok=True)
        (self.place / name).write_text(text)

    def here(self, text: str) -> str:
        for path, own in PLACES.items():
            text = text.replace(path, str(self.place / own))
        return text

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """Runs a line. A shell is started only for a line that needs one."""
        here = self.here(line).replace("$PWD", str(self.place))
        words = shlex.split(here, comments=True)
        given = list(takewhile(re.compile(r"MONARCH_\w+=").match, words))
        if set(SHELL).isdisjoint(here) and words[len(given)] == "monarch":
            environment = self.environment | dict(each.split("=", 1) for each in given)
            return run_monarch(words[len(given) + 1 :], environment)
        with (self.place / "said").open("w+") as said:
            done = subprocess.run(
                ["bash", "-c", self.here(line)],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                timeout=60,
                check=False,
            )
            said.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, said.read(), "")

    def prepare(self, command: str) -> None:
        """Prepares the session for a command. If the command requires that no daemon runs, ends the
        daemon; otherwise starts a daemon if none runs. Also writes the command's input file."""
        if command in WITHOUT_DAEMON:
            self.end_daemon()
        elif not self.session.connection.runs():
            assert self.run("monarch start -c tiers.yaml").returncode == 0
            self.session.wait_all_present()
        if command in BEFORE:
            assert self.run(BEFORE[command]).returncode == 0

    def end_daemon(self) -> None:
        if self.session.connection.runs():
            assert self.session.monarch("stop").returncode == 0


def command_of(line: str) -> str:
    """Returns the command of a line, without the word `monarch`."""
    found = [name for name in COMMANDS if f"{name} " in f"{line} "]
    return max(found, key=len).removeprefix("monarch ")


def needs_daemon(line: str) -> int:
    """The sort key of a line. Lines that need no daemon come first, and lines of ENDS_DAEMON come
    last. So the daemon rarely has to be started or ended between two lines."""
    command = command_of(line)
    return (command not in WITHOUT_DAEMON) + command.startswith(ENDS_DAEMON)


TRIED: list[str] = sorted(
    # tests/slurm runs the lines for Slurm, and tests/demo runs the line of the demo.
    [x for x in [*LINES, *VARIABLES.values()] if not x.startswith(("srun", "monarch demo"))],
    key=needs_daemon,
)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    place = tmp_path_factory.mktemp("examples")
    with Session(place, place / "imagenet") as session:
        made = Shell(session)
        yield made
        made.end_daemon()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_one(command: str) -> None:
    assert any(command in line for line in examples(COMMANDS[command].command))


def test_the_page_shows_the_help_of_every_command() -> None:
    page = REFERENCE.read_text()
    assert MARK in page
    assert with_commands(page) == page, "run `PYTHONPATH=tests python -m support.reference`"


def test_the_page_shows_every_variable() -> None:
    code = [*(ROOT / "monarch_py").rglob("*.py"), *(ROOT / "csrc").rglob("*.[ch]")]
    read = set(re.findall(r'"(MONARCH_[A-Z_]+)"', "".join(path.read_text() for path in code)))
    assert read >= set(VARIABLES)
    assert [name for name in read if f"`{name}`" not in REFERENCE.read_text()] == []


# Each of these lines differs from another example only in the variable that it sets, and other
# tests set the same variable. So these lines are run only with --long.
ALIKE = [VARIABLES[f"MONARCH_{name}"] for name in ("AUTOSTART", "JOB", "LOG")]


@pytest.mark.parametrize("line", cases(TRIED, [line for line in TRIED if line not in ALIKE]))
def test_it_runs(line: str, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    if line.startswith("mpiexec") and (missing := why_no_mpi()):
        pytest.skip(missing)
    monkeypatch.chdir(shell.place)
    command = command_of(line)
    shell.prepare(command)
    done = shell.run(line)
    assert done.returncode == 0, done.stdout + done.stderr
    if command in STARTS_DAEMON:
        wait_until(shell.session.connection.serves, what="the daemon of the example")
