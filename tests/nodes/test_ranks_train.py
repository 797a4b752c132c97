"""PyTorch's DistributedDataParallel on several nodes, each rank with its own daemon: every loss is
equal, to the last bit, to the loss without Monarch, and the source is read once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.nodes import Node, Nodes

from monarch_py.demo.slowsource import SlowSource

TRAIN: list[str | Path] = [Path(__file__).with_name("train_ranks.py")]
# -S leaves out the directories of installed packages, so the interpreter starts sooner.
READ: list[str | Path] = ["-I", "-S", Path(__file__).with_name("read_ranks.py")]
RUN_LIMIT_S = 120
CLASSES, FILES_OF_CLASS = 4, 24
KIB = 1 << 10


def make_dataset(root: Path) -> int:
    """Makes a dataset with one directory of files for each class. The mean value of the bytes
    differs between the classes. Returns the size of the dataset [bytes]."""
    total = 0
    for number in range(CLASSES):
        folder = root / f"class{number}"
        folder.mkdir()
        for i in range(FILES_OF_CLASS):
            size = 64 * (100 + i * 7)
            step = 2 * number + 1
            data = bytes((i * 31 + at * at * step) % 251 for at in range(size))
            (folder / f"{i:03d}.bin").write_bytes(data)
            total += size
    return total


def run(
    program: Sequence[str | Path],
    nodes: Nodes,
    mounts: list[SlowSource],
    out: Path,
    *,
    preload: bool,
) -> list[list[str]]:
    """Runs all ranks: each with the library on its own node, or all of them without the library.
    Returns the lines that each rank has written."""
    out.mkdir()
    ranks = [f"{rank}:{mount.mountpoint}" for rank, mount in enumerate(mounts)]
    calls = [(node, [word]) for node, word in zip(nodes.all, ranks, strict=True)]

    def begin(node: Node, words: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *map(str, program), str(out), str(len(ranks)), *words],
            env=node.env(preload, GLOO_SOCKET_IFNAME="lo"),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    with ExitStack() as stack:
        processes = []
        for node, words in calls if preload else [(nodes[0], ranks)]:
            processes.append(stack.enter_context(begin(node, words)))
            stack.callback(end, processes[-1])
        for process in processes:
            _, errors = process.communicate(timeout=RUN_LIMIT_S)
            assert process.returncode == 0, errors
    return [(out / str(rank)).read_text().splitlines() for rank in range(len(ranks))]


def end(process: subprocess.Popen[str]) -> None:
    """Kills the process's group, which includes the ranks that the process has forked."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


Make = Callable[..., Nodes]
Mount = Callable[[int], list[SlowSource]]


def check(
    program: Sequence[str | Path], count: int, nodes_factory: Make, mounts: Mount, place: Path
) -> None:
    sources = mounts(count)
    total = make_dataset(sources[0].backing)
    nodes = nodes_factory(sources, [4 * total] * count).start()
    plain = run(program, nodes, sources, place / "plain", preload=False)
    for source in sources:
        source.reset()
    cold = run(program, nodes, sources, place / "cold", preload=True)
    nodes.wait_idle()
    assert cold == plain
    # All ranks end with the same weights, and no two batches are alike.
    assert len({lines[-1] for lines in plain}) == 1
    assert len({line for lines in plain for line in lines}) == count * (len(plain[0]) - 1) + 1
    assert sum(source.counts()["bytes_read"] for source in sources) <= 1.02 * total
    assert sum(node.totals()["bytes_from_peers"] for node in nodes.all) > 0
    assert sum(node.totals()["fallbacks"] for node in nodes.all) == 0


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 4])
def test_losses_are_the_same_to_the_bit(
    nodes_factory: Make, mounts: Mount, tmp_path: Path, count: int
) -> None:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    check(TRAIN, count, nodes_factory, mounts, tmp_path)


def test_batches_are_the_same(nodes_factory: Make, mounts: Mount, tmp_path: Path) -> None:
    """The same as the test above, but with ranks that start sooner (see read_ranks.py)."""
    check(READ, 2, nodes_factory, mounts, tmp_path)
