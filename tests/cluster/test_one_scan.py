"""The source is listed once for all nodes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster.conftest import Local
from support.draws import cases, sized
from support.session import wait_until

from monarch_py.demo.slowsource import SlowSource
from monarch_py.native import LIBRARY

DIRECTORIES, FILES = 12, 30
NODES = sized(2, 3)
# The maximum number of requests for attributes that each additional node may cause, however large
# the dataset is. `start` and the daemon check the root, and compare one file to find out whether
# the nodes have the same source.
LOOKS_OF_A_NODE = 25


def wait_until_ready(local: Local, ranks: range) -> None:
    """Waits until all daemons have their catalog and its listings."""
    for rank in ranks:
        connection = local.connection(rank)
        wait_until(lambda connection=connection: connection.ask("status")["scanned"])  # type: ignore[misc]


def fill(backing: Path) -> None:
    for i in range(DIRECTORIES):
        (backing / f"d{i}").mkdir()
        for j in range(FILES):
            (backing / f"d{i}" / f"f{j}").write_bytes(bytes(j))
    # If a directory changed just before a node lists it, the node checks the directory once more.
    # The wait prevents these additional requests.
    made = time.time()
    wait_until(lambda: time.time() > made + 3)


def test_further_nodes_ask_the_source_for_nothing_but_a_look(
    tmp_path: Path, slow_factory: Callable[..., SlowSource], local_factory: Callable[..., Local]
) -> None:
    source = slow_factory(attr_timeout=0)
    fill(tmp_path / "backing")
    local = local_factory(tmp_path / "mount", NODES)

    def counted(start: Callable[[], None], ranks: range) -> dict[str, int]:
        before = source.counts()
        start()
        wait_until_ready(local, ranks)
        return {name: n - before[name] for name, n in source.counts().items()}

    def start_alone() -> None:
        assert local.monarch("start", "-c", local.file(0)).returncode == 0

    alone = counted(start_alone, range(1))
    assert alone["getattr"] > DIRECTORIES * FILES
    assert alone["readdir"] > DIRECTORIES
    assert local.monarch("stop", "-c", local.file(0)).returncode == 0
    together = counted(local.start, range(NODES))
    assert together["readdir"] <= alone["readdir"]
    # `start` checks the configuration of each node, as it does for a single node.
    assert together["getattr"] <= alone["getattr"] + NODES * LOOKS_OF_A_NODE
    assert together["read"] == 0


def test_all_nodes_list_what_the_first_has_listed(
    tree: Path, local_factory: Callable[..., Local]
) -> None:
    """All nodes know the same entries. These include entries that are not files, and entries that
    the configuration excludes."""
    local = local_factory({"path": str(tree), "exclude": ["c/*"]}, NODES)
    local.start()
    wait_until_ready(local, range(NODES))
    sources = [local.connection(rank).ask("status")["sources"][0] for rank in range(NODES)]
    for source in sources:
        assert source["bypass"] == {"excluded": 5}
        assert source["files"] == 17
        assert source["scan_seconds"] == sources[0]["scan_seconds"] > 0
    entries = {local.connection(rank).ask("status")["catalog_entries"] for rank in range(NODES)}
    assert len(entries) == 1


def test_a_job_on_a_further_node_sees_the_tree_as_it_is(
    tree: Path, local_factory: Callable[..., Local]
) -> None:
    script = (
        "import os, sys\n"
        "for d, ds, fs in os.walk(sys.argv[1]):\n"
        "    for n in ds + fs:\n"
        "        s = os.lstat(os.path.join(d, n))\n"
        "        print(d, n, *s[:7], *s[8:10], s.st_mtime_ns, s.st_ctime_ns, s.st_blocks)\n"
    )
    words = [sys.executable, "-c", script, str(tree)]
    local = local_factory(tree, 2)

    def walk(**env: str) -> str:
        return subprocess.run(
            words, env=local.env(**env), capture_output=True, text=True, check=True
        ).stdout

    plain = walk()
    assert len(plain.splitlines()) > 20
    local.start()
    wait_until_ready(local, range(2))
    library = {"LD_PRELOAD": str(LIBRARY), "MONARCH_CONFIG": str(local.file(1))}
    assert walk(**library) == plain
    assert local.connection(1).ask("status")["totals"]["metadata_hits"] > 0


@pytest.mark.parametrize("name", cases(["", "a"], short=["a"]))
def test_another_tree_under_the_same_name_is_refused(
    tree: Path, tmp_path: Path, local_factory: Callable[..., Local], name: str
) -> None:
    """A start is refused if the source, or a part of it, is a different directory on one node."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    other = tmp_path / "other"
    shutil.copytree(tree / name, other, symlinks=True)
    for directory in ("a", "c") if not name else ():
        assert (other / directory).is_dir()
    # The nodes compare a single file of the source. The test removes all files outside the
    # directory `name`, so the compared file lies in `name`, and differs between the two nodes.
    shutil.rmtree(tree / "c")
    for file in ("empty", "large", "to_file"):
        (tree / file).unlink()
    local = local_factory(tree, 2)
    mount = f'mount --bind {other} {tree / name} && exec "$@"'
    inside = f"exec unshare --mount --propagation private sh -c '{mount}' sh \"$@\""
    local.prefix = ["sh", "-c", f'if [ "$PMI_RANK" = 1 ]; then {inside}; else exec "$@"; fi', "sh"]
    done = local.ranks("start", "-c", local.template)
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert f"{tree} is not the same directory " in line
    assert line.startswith("monarch: ")
    assert "#1: " in line
    assert local.daemons() == []
