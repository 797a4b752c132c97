"""The command `monarch simulate`: what it prints, draws and refuses."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from cli.conftest import Monarch
from simulator.documents import validate

from monarch_py.cli import main
from monarch_py.policies.named import NAMES

SCENARIO: dict[str, Any] = {
    "name": "a small one",
    "nodes": 2,
    "epochs": 3,
    "batch_per_rank": 4,
    "dataset": {"files": 64, "size": {"mean": "1MiB"}},
    "rates": {"compute": "100MiB/s", "preprocess": "1GiB/s", "network": "10GiB/s"},
    "pfs": {1: "50MiB/s", 2: "100MiB/s"},
    "classes": [
        {"name": "staging", "capacity": "16MiB", "threads": 4, "read": {4: "10GiB/s"}},
        {"name": "ram", "capacity": "24MiB", "threads": 2, "read": {2: "10GiB/s"}},
    ],
    "assumptions": ["No [b]markup[/b] here."],
}
NO_MATPLOTLIB = "monarch: drawing needs matplotlib; pip install matplotlib\n"


class Said(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Said]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Returns a function that runs `monarch simulate WORDS` in this process."""
    monkeypatch.delenv("LD_PRELOAD", raising=False)

    def run(*words: str, width: int = 200) -> Said:
        monkeypatch.setattr(sys, "argv", ["monarch", "simulate", *words])
        monkeypatch.setenv("COLUMNS", str(width))
        with pytest.raises(SystemExit) as ended:
            main()
        return Said(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[..., str]:
    """Returns a function that changes keys of a copy of `SCENARIO`, writes the copy to a file, and
    returns the file's path. The value None removes a key."""

    def write(**changes: Any) -> str:
        path = tmp_path / "mine.yaml"
        whole = {k: v for k, v in {**SCENARIO, **changes}.items() if v is not None}
        path.write_text(yaml.safe_dump(whole))
        return str(path)

    return write


def test_the_table_tells_every_policy(run: Run, scenario: Callable[..., str]) -> None:
    said = run(scenario(), "-p", "naive", "-p", "hash", "-p", "lbann-preloading")
    assert said.status == 0, said.err
    assert said.out.startswith("a small one (times in seconds)\n")
    assert "The daemon today: hash on several nodes." in said.out
    assert "lbann-preloading cannot run this scenario: the dataset" in said.out
    assert "No [b]markup[/b] here." in said.out
    # A node reads 96 samples at 50 MiB/s, prepares them at 1 GiB/s, and computes at 100 MiB/s.
    naive = next(line for line in said.out.splitlines() if "naive" in line)
    assert naive.split()[:2] == ["naive", "2.974"]


@pytest.mark.parametrize("rate", ["100GiB/s", "100MiB/s", "100KiB/s", "10B/s"])
def test_the_table_has_80_columns_at_most(
    run: Run, scenario: Callable[..., str], rate: str
) -> None:
    """The table has at most 80 columns, whether its times are milliseconds or years."""
    rates = {name: rate for name in ("compute", "preprocess", "network")}
    said = run(scenario(rates=rates, assumptions=[]))
    assert said.status == 0, said.err
    table = said.out.splitlines()
    assert set(NAMES) <= {line.partition(" ")[0] for line in table}
    assert max(map(len, (line for line in table if "cannot run" not in line))) <= 80


def test_a_narrow_terminal_loses_no_number(
    run: Run, scenario: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (scenario(), "-p", "naive", "-p", "staging-buffer")
    wide = run(*words).out
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # makes rich treat the output as a terminal
    monkeypatch.setenv("NO_COLOR", "1")
    narrow = run(*words, width=50).out
    assert max(map(len, narrow.splitlines())) <= 50
    numbers = re.compile(r"\d[\d.]*%?")
    assert sorted(numbers.findall(narrow)) == sorted(numbers.findall(wide))


def test_json_is_the_report_and_nothing_else(
    scenario: Callable[..., str], monarch: Monarch
) -> None:
    done = monarch("simulate", scenario(), "--json")
    assert done.returncode == 0
    assert done.stderr == ""
    document = json.loads(done.stdout)
    validate(document)
    assert tuple(document["policies"]) == NAMES
    assert "unsupported" in document["policies"]["lbann-preloading"]
    reports = [r for r in document["policies"].values() if "unsupported" not in r]
    assert (
        min(r["total_seconds"] for r in reports) >= document["policies"]["perfect"]["total_seconds"]
    )


def test_the_scenario_says_which_policies(run: Run, scenario: Callable[..., str]) -> None:
    path = scenario(policies=["naive", "lru"])
    assert list(json.loads(run(path, "--json").out)["policies"]) == ["naive", "lru"]
    said = run(path, "--json", "-p", "belady")
    assert list(json.loads(said.out)["policies"]) == ["belady"]


def test_the_list_has_policies_and_scenarios(run: Run) -> None:
    said = run("--list")
    assert said.status == 0
    for name in (*NAMES, "nopfs_fig8_1"):
        assert re.search(rf"\b{name}\b", said.out), name
    assert "NoPFS fig. 8, case 1" in said.out
    lines = said.out.splitlines()
    # The daemon's own policies come first.
    headings = [line.partition(":")[0] for line in lines if line and not line.startswith(" ")]
    assert headings == ["Policies", "Other policies", "Scenarios"]
    assert lines[1].split()[0] == "first-fit"


def test_a_shipped_scenario_needs_no_path(run: Run) -> None:
    said = run("nopfs_fig8_1", "-p", "perfect", "--json")
    # Five epochs of 49,920 files of 784 bytes. Each of the 4 nodes computes a quarter of the bytes,
    # at 64 MiB/s.
    total = json.loads(said.out)["policies"]["perfect"]["total_seconds"]
    assert total == pytest.approx(5 * 49_920 * 784 / 4 / (64 * 2**20))


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (
            ["nowhere.yaml"],
            2,
            "unknown scenario 'nowhere.yaml'; give a file, or one of four_nodes, lobster",
        ),
        (["/"], 2, "/: the scenario cannot be read (Is a directory); check the path"),
        (["nopfs_fig8_1", "-p", "best"], 2, "there is no policy 'best'; use perfect, naive"),
        (["nopfs_fig8_1", "-p", "hsh"], 2, "there is no policy 'hsh'; did you mean 'hash'?"),
        (["for_nodes"], 2, "unknown scenario 'for_nodes'; did you mean 'four_nodes'?"),
        ([], 2, "no scenario is named; `monarch simulate --list` shows those that come with"),
        (
            ["nopfs_fig8_1", "--plot", "/nowhere/x.png"],
            1,
            "cannot be drawn: /nowhere does not exist; make it",
        ),
        (
            ["nopfs_fig8_1", "--plot", "x.doc"],
            1,
            "x.doc does not have the extension of a picture; use one of .png",
        ),
    ],
)
def test_a_mistake_is_one_sentence(run: Run, words: list[str], status: int, sentence: str) -> None:
    said = run(*words)
    assert (said.status, said.out) == (status, "")
    assert said.err.startswith("monarch: ")
    assert sentence in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"epochs": 0}, "epochs: 0 is out of range"),
        ({"classes": []}, "classes: "),
        ({"pfs": {1: "-5MiB/s"}}, "pfs.1: '-5MiB/s' is a negative rate"),
        ({"classes": [{"name": "staging", "threads": 1, "read": {1: "1GiB/s"}}]}, ".capacity: is"),
        ({"world_size": 5}, "world_size: 5 ranks cannot be divided evenly among 2 nodes"),
        ({"batch_per_rank": 100}, "batch_per_rank: 64 files do not fill one batch of 200"),
        ({"dataset": {"scan": "/nowhere"}}, "dataset.scan: /nowhere: no sizes can be read"),
        ({"policies": ["naive", "best"]}, "policies: there is no policy 'best'"),
        ({"policies": ["naiv"]}, "policies: there is no policy 'naiv'; did you mean 'naive'?"),
        ({"nodez": 2}, "nodez: unknown key; did you mean 'nodes'?"),
        ({"rates": None}, "rates: is missing"),
    ],
)
def test_a_scenario_that_cannot_be_names_file_line_and_key(
    run: Run, scenario: Callable[..., str], changes: dict[str, Any], key: str
) -> None:
    path = scenario(**changes)
    said = run(path)
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith(f"monarch: {path}")
    assert key in said.err
    assert said.err.count("\n") == 1


def test_a_configuration_is_no_scenario(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "tiers.yaml"
    path.write_text("sources: [/a]\nhierarchy: [{mount_point: /b, max_storage_quota: 1GiB}]\n")
    said = run(str(path))
    assert (said.status, said.out) == (2, "")
    assert said.err == (
        f"monarch: {path} is a configuration, not a scenario; `monarch calibrate -c {path} -o"
        " scenario.yaml` measures its machine and writes one\n"
    )


def test_a_picture_is_drawn(run: Run, scenario: Callable[..., str], tmp_path: Path) -> None:
    picture = tmp_path / "mine.svg"
    said = run(
        scenario(), "-p", "perfect", "-p", "naive", "-p", "lbann-dynamic", "--plot", str(picture)
    )
    if find_spec("matplotlib") is None:
        assert (said.status, said.err) == (1, NO_MATPLOTLIB)
        return
    assert said.status == 0, said.err
    # The SVG file contains each text as a comment beside the paths that draw the text.
    text = picture.read_text()
    assert all(f"<!-- {word} -->" in text for word in ("naive", "2.974", "a small one"))
    assert "<!-- lbann-dynamic -->" not in text


def test_a_picture_of_nothing_is_refused(
    run: Run, scenario: Callable[..., str], tmp_path: Path
) -> None:
    said = run(scenario(), "-p", "lbann-dynamic", "--plot", str(tmp_path / "x.png"))
    assert said.status == 1
    if find_spec("matplotlib") is None:
        assert said.err == NO_MATPLOTLIB
    else:
        assert "none of these policies can run in the scenario; name others" in said.err


def test_without_matplotlib_it_is_said_before_the_work(
    run: Run, scenario: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch_py.simulator.plot.find_spec", lambda name: None)
    monkeypatch.setattr("monarch_py.simulator.comparison.simulate", None)
    said = run(scenario(), "--plot", str(tmp_path / "x.png"))
    assert (said.status, said.out, said.err) == (1, "", NO_MATPLOTLIB)


def test_too_little_memory_is_one_sentence(
    run: Run, scenario: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("monarch_py.simulator.comparison.simulate", full)
    said = run(scenario(), "-p", "naive")
    assert said.status == 1
    assert (
        "dataset.files: 64 files do not fit into the memory of this machine; use fewer" in said.err
    )


PAGES = Path(__file__).parents[2] / "docs"


def test_the_page_tells_of_every_policy() -> None:
    page = (PAGES / "simulator.md").read_text()
    table = page.partition("## Policies")[2].partition("\n## ")[0]
    told = re.findall(r"`([a-z-]+)`", "\n".join(re.findall(r"^\|([^|]*)\|", table, re.M)))
    assert sorted(told) == sorted(NAMES)


def test_the_page_tells_of_every_field(run: Run, scenario: Callable[..., str]) -> None:
    page = (PAGES / "scenarios.md").read_text()
    said = json.loads(run(scenario(), "--json", "-p", "naive").out)
    for field in (*said, *said["policies"]["naive"], "unsupported"):
        assert f"`{field}`" in page


def test_the_worked_example_gives_what_the_page_says(run: Run, tmp_path: Path) -> None:
    page = (PAGES / "simulator.md").read_text().partition("\n## The model")[0]
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    rows = re.findall(r"^\| `([a-z-]+)`[^|]*\| ([\d,]+) s \|", page, re.M)
    # The example is run at a fiftieth of its size, and takes a fiftieth of the time. The staging
    # buffer must have room for batches, so it is the only size that is reduced by a smaller factor.
    small = example.replace("1281167", "25623").replace("48GiB", "983MiB")
    small = small.replace("2GiB, threads", "160MiB, threads")
    (tmp_path / "mine.yaml").write_text(small)
    told = {name: seconds for name, seconds in reversed(rows)}
    assert list(told) == ["first-fit", "staging-buffer", "perfect"]
    said = run(str(tmp_path / "mine.yaml"), "--json", *(w for name in told for w in ("-p", name)))
    for name, result in json.loads(said.out)["policies"].items():
        seconds = float(told[name].replace(",", "")) / 50
        assert result["total_seconds"] == pytest.approx(seconds, rel=0.02)
