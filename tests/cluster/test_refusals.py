"""If one rank cannot go on, all ranks end, a single message is printed, and no daemon is left."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from cluster.conftest import INTERPRETER, Local
from support.draws import cases, sized
from support.planned import save_plan
from support.session import wait_until

from monarch_py.demo.slowsource import SlowSource
from monarch_py.plan.loader import Loader
from monarch_py.plan.samplers import DistributedSampler


def refusal(local: Local, *words: str | Path, status: int, count: int | None = None) -> str:
    """Runs `start`, which must fail and leave no daemon. Returns the only line that it prints."""
    done = local.ranks("start", "-c", local.template, *words, count=count)
    assert done.returncode == status, done.stderr
    assert local.daemons() == []
    (line,) = done.stderr.splitlines()
    assert line.startswith("monarch: ")
    return line


@pytest.mark.parametrize(
    ("settings", "status", "words"),
    [
        ({"block_sise": 1}, 2, ["#1: ", "tiers-1.yaml:", "block_sise: unknown key"]),
        (
            {"scan": "lazy"},
            2,
            ["#1: ", "tiers-1.yaml: several nodes need", "remove 'scan: lazy'"],
        ),
        # The next case runs only with --long, because test_launcher.py tests the same error in
        # every run, but without ranks.
        pytest.param(
            {"peers": {"interface": "no0"}},
            2,
            ["#1: ", "peers.interface: 'no0' has no address"],
            marks=pytest.mark.long,
        ),
        ({"block_size": "1MiB"}, 3, ["#1: block_size is 1048576 bytes, but on ", " 4194304 bytes"]),
        # The next case runs only with --long, because test_a_port_that_is_taken, which is similar,
        # always runs.
        pytest.param(
            {"peers": {"address": "192.0.2.77"}},
            3,
            ["#1: ", "cannot listen at 192.0.2.77"],
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_configuration_that_cannot_work(
    tree: Path,
    local_factory: Callable[..., Local],
    settings: dict[str, Any],
    status: int,
    words: list[str],
) -> None:
    local = local_factory(tree, 2)
    local.configure(1, **settings)
    line = refusal(local, status=status)
    for part in words:
        assert part in line


def test_sources_that_differ(
    tree: Path, tmp_path: Path, local_factory: Callable[..., Local]
) -> None:
    local = local_factory(tree, 2)
    (tmp_path / "more").mkdir()
    local.configure(1, sources=[str(tree), str(tmp_path / "more")])
    assert f"#1: sources[1] is '{tmp_path / 'more'}', but on " in (line := refusal(local, status=3))
    assert "missing; it must be the same" in line
    local.configure(1, sources=[{"path": str(tree), "include": ["*.tar"]}])
    assert "sources[0].include is ['*.tar'], but on " in refusal(local, status=3)


def test_plans_that_differ(tree: Path, local_factory: Callable[..., Local]) -> None:
    """If two ranks have different plans, or if one has no plan, `start` is refused, because the
    plan determines which rank owns which file."""
    local = local_factory(tree, 2)
    files = {f"f{i}": (tree / "a" / f"f{i}").stat().st_size for i in range(5)}
    for rank, seed in enumerate((1, 2)):
        loader = Loader(DistributedSampler(len(files), 2, seed), 2, 1)
        plan = save_plan(loader, 1, tree / "a", files, local.directory / f"plan{rank}.npz")
        local.configure(rank, plan=str(plan))
    assert "#1: plan[0] is one with the SHA-256 " in refusal(local, status=3)
    local.configure(1, plan=[])
    assert "#1: plan[0] is missing, but on " in refusal(local, status=3)


def test_a_port_that_is_taken(tree: Path, local_factory: Callable[..., Local]) -> None:
    local = local_factory(tree, 2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        local.configure(1, peers={"address": "127.0.0.1", "port": port})
        line = refusal(local, status=3)
    assert f"#1: the daemon cannot listen at 127.0.0.1, port {port} (Address already" in line
    local.start()
    assert local.connection(0).ask("all")["nodes"][1]["address"] == f"127.0.0.1:{port}"


def test_a_tier_that_another_daemon_holds(tree: Path, local_factory: Callable[..., Local]) -> None:
    local = local_factory(tree, 2)
    other = local.directory / "other.yaml"
    other.write_text(local.file(1).read_text())
    assert local.monarch("start", "-c", other).returncode == 0
    try:
        done = local.ranks("start", "-c", local.template)
        assert done.returncode == 3
        assert "#1: the daemon did not start: no tier can be used: " in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert len(local.daemons()) == 1  # the daemon of other.yaml
    finally:
        assert local.monarch("stop", "-c", other).returncode == 0


def test_a_daemon_that_runs_alone(tree: Path, local_factory: Callable[..., Local]) -> None:
    local = local_factory(tree, 2)
    assert local.monarch("start", "-c", local.file(1)).returncode == 0
    done = local.ranks("start", "-c", local.template)
    assert done.returncode == 3
    assert "#1: a daemon serves this configuration already, but does not" in done.stderr
    assert [daemon.pid for daemon in local.daemons()] == [local.connection(1).ask("where")["pid"]]


def test_two_ranks_with_one_configuration(tree: Path, local_factory: Callable[..., Local]) -> None:
    local = local_factory(tree, 2)
    local.template = local.file(0)
    line = refusal(local, status=3)
    assert "ranks 0 and 1 are both on " in line
    assert "mpiexec -ppn 1 (Open MPI: -N 1) or srun --ntasks-per-node=1" in line


def test_the_same_words_of_many_are_said_once(
    tree: Path, local_factory: Callable[..., Local]
) -> None:
    local = local_factory(tree, 2)
    local.template = local.directory / "not there.yaml"
    line = refusal(local, status=2, count=6)
    assert "#3 and 2 more: " in line
    assert "not there.yaml: the configuration cannot be read" in line


def test_a_placeholder_takes_a_launcher(tree: Path, local_factory: Callable[..., Local]) -> None:
    local = local_factory(tree, 2)
    done = local.monarch("start", "-c", local.template)
    assert done.returncode == 2
    assert "no launcher has given this process a number for {rank}" in done.stderr


def test_a_launcher_of_another_mpi(tree: Path, local_factory: Callable[..., Local]) -> None:
    """If srun runs without --mpi, the MPI library of each task sees only this task as a rank.
    `start` refuses to run, and names the option."""
    local = local_factory(tree, 2)
    env = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
    done = local.monarch("start", "-c", local.template, **env)
    assert done.returncode == 3
    assert done.stderr.startswith("monarch: 2 processes were started, but MPI sees 1: ")
    assert "srun --mpi=pmi2" in done.stderr


@pytest.mark.parametrize("number", cases([signal.SIGKILL, signal.SIGTERM], short=[signal.SIGKILL]))
def test_a_rank_that_dies_in_the_middle(
    tmp_path: Path,
    slow_factory: Callable[..., SlowSource],
    local_factory: Callable[..., Local],
    number: signal.Signals,
) -> None:
    """If a rank is killed while rank 0 lists a slow source, all ranks end."""
    source = slow_factory()
    for i in range(300):
        (tmp_path / "backing" / f"f{i}").touch()
    local = local_factory(tmp_path / "mount", sized(2, 3), scan_threads=1)
    local.program = INTERPRETER
    source.latency(getattr=0.2)
    before = source.counts()["getattr"]
    with subprocess.Popen(
        local.command("start", "-c", local.template),
        env=local.env(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as launcher:
        try:
            wait_until(lambda: source.counts()["getattr"] > before + 20)
            ranks = [
                process
                for process in psutil.Process(launcher.pid).children(recursive=True)
                if "monarch_py" in process.cmdline()
            ]
            assert len(ranks) == local.count
            ranks[-1].send_signal(number)
            started = time.monotonic()
            source.latency(getattr=0)
            assert launcher.wait(30) != 0
            assert time.monotonic() - started < 20
        finally:
            source.latency(getattr=0)
            launcher.kill()
        assert psutil.wait_procs(ranks, timeout=20)[1] == []
    wait_until(lambda: local.daemons() == [])
