"""The demo: its dataset, its training script, and the comparison that it prints."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.command_line import run_monarch
from support.command_tree import examples, leaves
from support.session import wait_until

from monarch_py.config.load import load_config
from monarch_py.demo import dataset as dataset_module
from monarch_py.demo import run as run_module
from monarch_py.demo.dataset import IMAGE_BYTES, make_dataset
from monarch_py.demo.run import run_demo
from monarch_py.errors import MonarchError
from monarch_py.util.units import MIB, parse_size

TRAIN = Path(run_module.__file__).with_name("train.py")
SMALL, SMALLEST = 4 * MIB, 2 * MIB
# The example in the command's help.
(EXAMPLE,) = examples(leaves()["monarch demo"].command)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("demo") / "dataset"
    make_dataset(directory, size_bytes=SMALL, seed=7)
    return directory


def digests(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def train(dataset: Path, output: Path, *options: str) -> list[dict[str, float]]:
    """Runs the training script with an empty standard input. Returns the records of the epochs
    without their durations."""
    subprocess.run(
        [sys.executable, str(TRAIN), str(dataset), "--json", str(output), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
    )
    return records(output)


def records(output: Path) -> list[dict[str, float]]:
    epochs: list[dict[str, float]] = json.loads(output.read_text())["epochs"]
    assert all(epoch.pop("seconds") > 0 for epoch in epochs)
    return epochs


# ---- dataset ----


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(
    dataset: Path, tmp_path: Path
) -> None:
    made = make_dataset(tmp_path / "again", size_bytes=SMALL, seed=7)
    make_dataset(tmp_path / "other", size_bytes=SMALL, seed=8)
    first, again, other = (digests(d) for d in (dataset, tmp_path / "again", tmp_path / "other"))
    assert first == again
    assert not set(first.values()) & set(other.values())
    assert made.n_files == len(first)
    assert made.n_bytes == sum(path.stat().st_size for path in dataset.rglob("*.*"))
    assert 0.9 * SMALL < made.n_bytes < 1.1 * SMALL
    assert made.n_images * IMAGE_BYTES < made.n_bytes


def test_a_dataset_is_neither_too_small_nor_mixed_with_other_files(tmp_path: Path) -> None:
    with pytest.raises(MonarchError, match=r"1 MiB is too small .* ask for 2 MiB or more"):
        make_dataset(tmp_path / "new", size_bytes=MIB, seed=0)
    with pytest.raises(FileExistsError):
        make_dataset(tmp_path, size_bytes=SMALL, seed=0)


# ---- training ----


def test_training_learns_from_every_image_and_repeats_itself(dataset: Path, tmp_path: Path) -> None:
    first = train(dataset, tmp_path / "1.json", "--epochs", "4")
    assert [epoch["epoch"] for epoch in first] == [1, 2, 3, 4]
    losses = [epoch["loss"] for epoch in first]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0] < 0.9 * 2.4
    assert first[-1]["accuracy"] > 0.5
    shares = [round(SMALL * share / IMAGE_BYTES) for share in dataset_module.SHARES.values()]
    assert first[0]["samples"] == sum(shares)
    # Each epoch reads the files in a different order, and a different seed gives different orders.
    assert len({epoch["crc32"] for epoch in first}) == 4
    assert train(dataset, tmp_path / "2.json", "--epochs", "4") == first
    assert train(dataset, tmp_path / "3.json", "--seed", "1", "--epochs", "1")[0] != first[0]


@pytest.fixture(scope="module")
def unchanged(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """The record of one epoch on the unchanged dataset."""
    output = tmp_path_factory.mktemp("unchanged") / "1.json"
    (epoch,) = train(dataset, output, "--epochs", "1")
    return epoch


@pytest.mark.parametrize("part", ["shards", "tree", "npy"])
def test_one_changed_bit_changes_the_checksum(
    dataset: Path, unchanged: dict[str, float], tmp_path: Path, part: str
) -> None:
    shutil.copytree(dataset, tmp_path / "changed")
    path = max((tmp_path / "changed" / part).rglob("*.*"), key=lambda p: (p.stat().st_size, p.name))
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1
    path.write_bytes(content)
    (after,) = train(tmp_path / "changed", tmp_path / "2.json", "--epochs", "1")
    assert unchanged["crc32"] != after["crc32"]


def test_in_lockstep_an_epoch_waits_for_the_word(dataset: Path, tmp_path: Path) -> None:
    undisturbed = train(dataset, tmp_path / "1.json", "--epochs", "2", "--lockstep")
    changing = tmp_path / "changing"
    shutil.copytree(dataset, changing)
    command = [sys.executable, str(TRAIN), str(changing), "--epochs", "2", "--lockstep"]
    with subprocess.Popen(
        [*command, "--json", str(tmp_path / "2.json")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "end of epoch 1\n"
        # If the training run did not wait, it would read some of these files before they change.
        for path in changing.rglob("*.raw"):
            path.write_bytes(bytes(IMAGE_BYTES))
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.readline() == "end of epoch 2\n"
        # The end of standard input ends the last wait of the training run.
    disturbed = records(tmp_path / "2.json")
    assert disturbed[0] == undisturbed[0]
    all_changed = train(changing, tmp_path / "3.json", "--epochs", "2")
    assert disturbed[1]["crc32"] == all_changed[1]["crc32"] != undisturbed[1]["crc32"]


# ---- the comparison ----


@contextmanager
def no_monarch(*_: object) -> Iterator[list[str]]:
    """Replaces `monarch run`: yields a command that runs its arguments without Monarch."""
    yield ["env"]


def demo(tmp_path: Path, **options: Any) -> tuple[int, str]:
    text = io.StringIO()
    usual: dict[str, Any] = {"size_bytes": SMALLEST, "workdir": tmp_path, "keep": False}
    arguments = usual | options
    return run_demo(Console(file=text, width=200), **arguments), text.getvalue()


def rows(text: str) -> list[list[str]]:
    """Returns the cells of the table's rows, without the header."""
    lines = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    return [cells for cells in lines if cells[0].isdigit()]


@pytest.mark.usefixtures("binary")
def test_the_source_counts_what_each_epoch_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_monarch", no_monarch)
    status, text = demo(tmp_path, keep=True)
    assert (status, text.isascii()) == (0, True)
    assert "Both training runs read the same bytes" in text
    (directory,) = tmp_path.iterdir()
    files = [path for path in (directory / "dataset").rglob("*") if path.is_file()]
    n_bytes = sum(path.stat().st_size for path in files)
    table = rows(text)
    assert [row[0] for row in table] == ["1", "2", "3"]
    for _, *cells in table:
        # No data stays in caches between epochs, so every epoch reads the whole dataset at the rate
        # of the source.
        for seconds in cells[:2]:
            assert float(seconds) > n_bytes / run_module.SOURCE_RATE
        for size in cells[2:4]:
            assert float(size.removesuffix(" MiB")) == pytest.approx(n_bytes / MIB, abs=0.15)
        for operations in cells[4:]:
            assert int(operations.replace(",", "")) > 2 * len(files)


def test_where_fuse_cannot_be_used_that_is_said_and_nothing_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_monarch", no_monarch)
    monkeypatch.setattr(run_module, "find_slowsource", lambda: Path("/somewhere"))
    monkeypatch.setattr(
        run_module, "why_unavailable", lambda binary: "/dev/fuse is missing: get it"
    )
    status, text = demo(tmp_path)
    assert status == 0
    assert "The slow source cannot be used: /dev/fuse is missing: get it." in text
    assert "operations" not in text
    assert "Cost of an epoch" in [line.rstrip() for line in text.splitlines()]
    assert [len(row) for row in rows(text)] == [3, 3, 3]
    assert list(tmp_path.iterdir()) == []


def test_without_a_terminal_the_table_is_plain_text_and_on_one_it_has_a_box() -> None:
    epochs = [run_module.Epoch(1.5, 2000, MIB, ())]
    plain, boxed = (run_module._table(epochs, epochs, is_plain=p) for p in (True, False))
    out = Console(file=io.StringIO(), width=200)
    with out.capture() as said:
        out.print(plain)
    assert said.get().isascii()
    assert rows(said.get()) == [["1", "1.50", "1.50", "1 MiB", "1 MiB", "2,000", "2,000"]]
    assert boxed.box is not None


def test_trainings_that_differ_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def spoiled(directory: Path, *_: object) -> Iterator[list[str]]:
        for path in (directory / "dataset").rglob("*.raw"):
            path.write_bytes(bytes(IMAGE_BYTES))
        yield ["env"]

    monkeypatch.setattr(run_module, "_monarch", spoiled)
    monkeypatch.setattr(run_module, "_slow_source", lambda *_: None)
    status, text = demo(tmp_path)
    assert status == 1
    assert "The training runs differ in epoch 1" in text


def test_a_training_that_fails_is_told_in_a_sentence_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def broken(*_: object) -> Iterator[list[str]]:
        yield ["sh", "-c", "echo first >&2; echo the reason >&2; exit 7"]

    monkeypatch.setattr(run_module, "_monarch", broken)
    monkeypatch.setattr(run_module, "_slow_source", lambda *_: None)
    with pytest.raises(MonarchError, match=r"status 7 after 0 epochs \(the reason\); see /"):
        demo(tmp_path)
    with pytest.raises(MonarchError, match="too small"):
        demo(tmp_path, size_bytes=1000)
    with pytest.raises(MonarchError, match="too little for a dataset of 8192 TiB"):
        demo(tmp_path, size_bytes=1 << 53)
    (tmp_path / "file").touch()
    with pytest.raises(MonarchError, match=r"/file: cannot create a directory there \(File ex"):
        demo(tmp_path, workdir=tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_it_has_made_goes_when_a_signal_ends_it(tmp_path: Path) -> None:
    words = ["demo", "--size", "4MiB", "--workdir", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-m", "monarch_py", *words], stdout=subprocess.DEVNULL
    ) as process:
        wait_until(lambda: list(tmp_path.glob("*/training-with*.log")), what="the second training")
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_a_checkout_in_the_working_directory_is_not_meant(tmp_path: Path) -> None:
    other = tmp_path / "checkout" / "monarch_py"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise SystemExit('another monarch_py')")
    (tmp_path / "source").mkdir()
    with run_module._monarch(tmp_path, tmp_path / "source", MIB) as command:
        done = subprocess.run(
            [*command, "echo", "RAN"],
            cwd=other.parent,
            env=run_module._environment(),
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "RAN\n"), done.stderr


def test_the_configuration_for_monarch_is_a_valid_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / 'a: "b" #c'
    (odd / "source").mkdir(parents=True)
    shared = tmp_path / "shm"
    shared.mkdir()
    monkeypatch.setattr(run_module, "SHARED_MEMORY", shared)
    with run_module._monarch(odd, odd / "source", 100 * MIB) as command:
        assert command[0] == sys.executable
        loaded = load_config(Path(command[command.index("run") + 2]))
        assert [source.path for source in loaded.sources] == [odd / "source"]
        assert [(tier.kind, tier.quota_bytes) for tier in loaded.tiers] == [
            ("ram", 32 * MIB),
            ("ssd", 1024 * MIB),
        ]
    assert list(shared.iterdir()) == []


@pytest.mark.usefixtures("binary")
def test_with_monarch_the_third_epoch_hardly_reaches_the_source() -> None:
    """Runs the example of the command's help, which trains once with Monarch and once without it.
    In the third epoch, the training run with Monarch must read less than a tenth as many bytes from
    the source as the run without Monarch."""
    if not Path(run_module.__file__).parents[1].joinpath("libmonarch.so").exists():
        pytest.skip("monarch_py/libmonarch.so is not built")
    done = run_monarch(shlex.split(EXAMPLE)[1:], os.environ)
    assert done.returncode == 0, done.stderr
    third = rows(done.stdout)[2]
    without, gained = (parse_size(cell) for cell in third[3:5])
    assert gained < without / 10
