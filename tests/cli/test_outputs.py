"""No command overwrites a file that it reads. If the current directory was removed, each command
says so."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from cli.conftest import Monarch
from support.session import Session

import monarch_py

RECIPE = """\
epochs: 2
parts:
- dataset: {place}/index
  batch_size: 1
  sampler: {{kind: WeightedRandomSampler, seed: 1, num_samples: 2, weights: {place}/weights}}
"""
GONE = "monarch: the current directory no longer exists; change to another one\n"
PACKAGE = Path(monarch_py.__file__).parent
SCENARIO = PACKAGE / "simulator/scenarios/four_nodes.yaml"
# Commands whose output file is one of their input files. `@` stands for the directory that the
# fixture `inputs` makes. `=`, which is used only for the output file, stands for the same directory
# or for a link to it.
OVERWRITING = [
    "plan index files @/data -o =/data/00",
    "plan make -c @/recipe -o =/recipe",
    "plan make -c @/recipe -o =/index",
    "plan make -c @/recipe -o =/weights",
    "plan show @/plan.png --plot =/plan.png",
    "simulate @/scenario.svg --plot =/scenario.svg",
    "calibrate -c @/tiers --force -o =/tiers",
    "report @/run -o =/run",
    "metrics -c @/tiers --textfile =/tiers",
    "run -c @/tiers --json =/tiers true",
    "run -c @/tiers --json =/plan.png true",
]


@pytest.fixture
def inputs(tmp_path: Path, session: Session, monarch: Monarch) -> Path:
    """A directory with files that commands read."""
    place = tmp_path / "inputs"
    (place / "data").mkdir(parents=True)
    for number in range(3):
        (place / f"data/{number:02}").write_bytes(bytes(number))
    (place / "weights").write_text("1\n2\n3\n")
    (place / "recipe").write_text(RECIPE.format(place=place))
    (place / "scenario.svg").write_text(SCENARIO.read_text())
    (place / "run").write_text("{}")
    (place / "tiers").write_text(session.config.read_text() + f"plan: {place}/plan.png\n")
    for words in ("index files @/data -o @/index", "make -c @/recipe -o @/plan.png"):
        done = monarch("plan", *words.replace("@", str(place)).split())
        assert done.returncode == 0, done.stderr
    return place


@pytest.mark.parametrize("is_link", [False, True], ids=["same", "link"])
@pytest.mark.parametrize("command", OVERWRITING)
def test_no_command_overwrites_its_input(
    inputs: Path, session: Session, monarch: Monarch, command: str, is_link: bool
) -> None:
    other = inputs
    if is_link:
        other = inputs.with_name("linked")
        other.symlink_to(inputs)
    before = {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()}
    option, output = next(pair for pair in pairwise(command.split()) if "=" in pair[1])
    named = command.replace("@", str(inputs)).replace("=", str(other))
    done = monarch(*named.split(), MONARCH_SHM=session.env()["MONARCH_SHM"])
    assert done.returncode == 2
    read, output = (output.replace("=", str(place)) for place in (inputs, other))
    assert done.stderr == (
        f"monarch: {option} {output}: would overwrite {read}, which this command reads; name"
        " another file\n"
    )
    assert done.stdout == ""
    assert before == {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()}


def test_hard_links_and_standard_input_are_seen(inputs: Path) -> None:
    (inputs / "hard").hardlink_to(inputs / "run")
    with (inputs / "run").open() as stdin:
        done = subprocess.run(
            [sys.executable, "-m", "monarch_py", "report", "-", "-o", inputs / "hard"],
            stdin=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert "hard: would overwrite /dev/stdin, which this command reads" in done.stderr
    assert (inputs / "run").read_text() == "{}"


# --- a directory that was removed ----------------------------------------------------------------


@pytest.fixture
def removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes to a new directory and removes it."""
    place = tmp_path / "removed"
    place.mkdir()
    monkeypatch.chdir(place)
    place.rmdir()


@pytest.mark.parametrize(
    "command",
    [
        *("clear -c t", "config check -c t", "config show -c t", "env -c t", "logs -c t"),
        *("ls -c t", "metrics -c t", "plan show t", "status -c t", "stop -c t", "top -c t"),
        *("verify -c t", "warm -c t"),
    ],
)
@pytest.mark.usefixtures("removed")
def test_a_removed_directory_is_named(monarch: Monarch, command: str) -> None:
    done = monarch(*command.split())
    assert done.returncode == 2
    assert done.stderr.endswith(GONE)
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("removed")
def test_absolute_paths_work_in_a_removed_directory(session: Session) -> None:
    def run(file: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "monarch_py", "run", "-c", str(file), "true"],
            env=session.env(preload=False, PYTHONPATH=str(PACKAGE.parent)),
            capture_output=True,
            text=True,
            check=False,
        )

    done = run("tiers.yaml")
    assert (done.returncode, done.stderr) == (2, GONE)
    done = run(session.config)
    assert done.returncode == 0, done.stderr
    assert GONE not in done.stderr
