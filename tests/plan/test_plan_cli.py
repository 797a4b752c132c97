"""The commands monarch plan index, make and show."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from monarch_py.cli import group
from monarch_py.errors import ConfigError, MonarchError
from monarch_py.plan import Plan
from monarch_py.plan.index import Index

RECIPE = """\
epochs: 4
nodes: 2
parts:
- dataset: "@/index.npz"
  batch_size: 3
  sampler: {kind: DistributedSampler}
"""


def run(*words: object, error: type[Exception] | None = None) -> Result:
    done = CliRunner().invoke(group, ["plan", *map(str, words)])
    if error is None:
        assert done.exit_code == 0, done.output
    else:
        assert isinstance(done.exception, error)
    return done


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    for number in range(12):
        (root / f"{number:02}").write_bytes(bytes(1024))
    return root


@pytest.fixture
def plan(tmp_path: Path, dataset: Path) -> Path:
    run("index", "files", dataset, "-o", tmp_path / "index.npz")
    (tmp_path / "plan.yaml").write_text(RECIPE.replace("@", str(tmp_path)))
    run("make", "-c", tmp_path / "plan.yaml", "-o", tmp_path / "plan.npz")
    return tmp_path / "plan.npz"


def test_index(tmp_path: Path, dataset: Path) -> None:
    out = tmp_path / "i.npz"
    done = run("index", "files", dataset, "-o", out, "--pattern", "0*")
    assert done.output.startswith("10 samples in 10 files (10 KiB), digest ")
    assert Index.load(out).root == str(dataset)
    fixed = run("index", "fixed", dataset, "-o", out, "--record-bytes", 512)
    assert fixed.output.startswith("24 samples in 12 files")


def test_index_says_what_is_missing(tmp_path: Path, dataset: Path) -> None:
    out = tmp_path / "i.npz"
    for words, text in (
        (["fixed", dataset], "fixed needs --record-bytes"),
        (["hdf5", dataset], "hdf5 needs --dataset"),
        (["files", dataset, "--pattern", "["], "unclosed '['"),
        (["image_folder", dataset, "--pattern", "*.bin"], "leave out --pattern"),
        (["files", dataset, "--dataset", "x"], "--dataset is only for the kind hdf5; leave it out"),
        (["hdf5", dataset, "--record-bytes", "8"], "--record-bytes is only for the kind fixed"),
        (["files", dataset, "--header-bytes", "0"], "--header-bytes is only for the kind fixed"),
    ):
        done = CliRunner().invoke(group, ["plan", "index", *map(str, words), "-o", str(out)])
        assert done.exit_code == 2
        assert text in done.output
    assert not out.exists()


def test_make(plan: Path) -> None:
    made = Plan.load(plan)
    assert (made.epochs, made.nodes) == (4, 2)
    done = run("make", "-c", plan.with_name("plan.yaml"), "-o", plan)
    assert done.output == (
        "4 epochs on 2 nodes with 1 rank each, 12 files: training (12 samples, 2 steps of 3 on"
        " each rank)\n"
    )


def test_make_from_a_plan(plan: Path) -> None:
    done = run("make", "-c", plan, "-o", plan.with_name("other.npz"), error=ConfigError)
    assert str(done.exception).endswith("is a plan or an index; name its description (plan.yaml)")


@pytest.mark.parametrize(
    ("out", "why"), [("none/p.npz", "No such file or directory"), (".", "[A-Z].*")]
)
def test_make_where_no_file_can_be(
    plan: Path, monkeypatch: pytest.MonkeyPatch, out: str, why: str
) -> None:
    """`make` reports a path that cannot be written, and leaves no file behind.

    why : a pattern for the reason in the message. If the path is a directory, the kernel gives the
        reason, so the pattern accepts any text"""
    monkeypatch.chdir(plan.parent)
    before = sorted(plan.parent.iterdir())
    done = run("make", "-c", plan.with_name("plan.yaml"), "-o", out, error=ConfigError)
    said = rf"{re.escape(out)}: cannot be written \({why}\); check the path"
    assert re.fullmatch(said, str(done.exception))
    assert sorted(plan.parent.iterdir()) == before


def test_index_in_a_directory_that_cannot_be_written(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`index` reports a read-only file system."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(np, "savez_compressed", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    done = run("index", "files", dataset, "-o", tmp_path / "i.npz", error=ConfigError)
    assert "cannot be written (Read-only file system)" in str(done.exception)


@pytest.mark.parametrize("more", ["", "  split: local_first\n  quota: 8KiB\n"])
def test_a_description_is_shown_like_the_plan_made_from_it(plan: Path, more: str) -> None:
    recipe = plan.with_suffix(".yaml")
    recipe.write_text(recipe.read_text() + more)
    run("make", "-c", recipe, "-o", plan)
    assert run("show", recipe).output == run("show", plan).output


def test_show(plan: Path) -> None:
    text = run("show", plan).output
    assert "\nHow often node 0 accesses the files\naccesses  files  expected\n" in text
    assert "\nBytes that all nodes read in each epoch, by origin\nepoch  own copies" in text
    assert re.search(r"\nEach node owns \d+ to \d+ files, ", text)
    assert max(map(len, text.splitlines()[1:])) <= 80
    found = json.loads(run("show", plan, "--json", "--node", 1, "--quota", "2KiB").output)
    assert sum(found["frequency"]) == 12
    assert sum(n * k for k, n in enumerate(found["frequency"])) == 4 * 6
    assert max(found["owned_bytes"]) <= 2048
    assert [sum(each.values()) for each in found["epochs"]] == [12 * 1024] * 4
    assert found["epochs"][0]["source"] == 12 * 1024
    assert found["epochs"][3]["source"] == (12 - sum(found["owned_units"])) * 1024


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("text.npz", "it is not an .npz file"),
        ("index.npz", "it is an index"),
        ("cut.npz", "it is damaged"),
        ("objects.npz", "it is damaged, or holds Python objects"),
        ("others.npz", "it holds other arrays"),
    ],
)
def test_what_is_no_plan_is_said_in_our_own_words(plan: Path, name: str, why: str) -> None:
    plan.with_name("text.npz").write_text(RECIPE)
    plan.with_name("cut.npz").write_bytes(plan.read_bytes()[:200])
    np.savez(plan.with_name("objects.npz"), plan=np.array([{}], dtype=object))
    np.savez(plan.with_name("others.npz"), a=np.zeros(1))
    path = plan.with_name(name)
    done = run("show", path, error=ConfigError)
    hint = "make one with `monarch plan make -c plan.yaml`"
    assert str(done.exception) == f"{path}: not a plan ({why}); {hint}"


def test_a_missing_index_is_said_with_the_line_that_names_it(plan: Path) -> None:
    recipe, index = plan.with_suffix(".yaml"), plan.with_name("index.npz")
    index.unlink()
    done = run("show", recipe, error=ConfigError)
    said = f"{recipe}:4: parts[0].dataset: {index}: cannot be read (No such file or directory)"
    assert str(done.exception) == f"{said}; check the path"


def test_a_plan_is_no_index(plan: Path) -> None:
    with pytest.raises(ConfigError, match=r"plan.npz: not an index \(it is a plan\); make one"):
        Index.load(plan)


def test_a_kind_that_is_none(dataset: Path, tmp_path: Path) -> None:
    words = ["plan", "index", "imagefolder", str(dataset), "-o", str(tmp_path / "i.npz")]
    done = CliRunner().invoke(group, words)
    assert done.exit_code == 2
    assert "'imagefolder' is not one of 'image_folder', 'files'" in done.output


def test_show_draws(plan: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: '.[plots]'")
    picture = plan.with_name("plan.svg")
    run("show", plan, "--plot", picture)
    assert "<svg" in picture.read_text()


def test_show_without_matplotlib_says_what_to_install(
    plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch_py.simulator.plot.find_spec", lambda name: None)
    done = run("show", plan, "--plot", plan.with_name("plan.svg"), error=MonarchError)
    assert str(done.exception) == "drawing needs matplotlib; pip install matplotlib"


def test_show_of_a_node_that_is_none(plan: Path) -> None:
    done = run("show", plan, "--node", 2, error=ConfigError)
    assert str(done.exception) == "node: there is no node 2; the plan has nodes 0 to 1"
