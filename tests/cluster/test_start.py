"""`mpiexec monarch start`, `serve` and `stop`, with real ranks on this machine."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from cluster.conftest import INTERPRETER, Local
from support.draws import sized
from support.session import wait_until

FILES = 17  # the number of regular files in `tree`


def wait_scanned(local: Local) -> None:
    for rank in range(local.count):
        connection = local.connection(rank)
        wait_until(lambda connection=connection: connection.ask("status")["scanned"])  # type: ignore[misc]


def test_daemons_know_of_each_other(tree: Path, local_factory: Callable[..., Local]) -> None:
    count = sized(2, 4)
    local, last = local_factory(tree, count), count - 1
    # In other tests the ranks are forked by a server, and so are their daemons. Here each rank has
    # an interpreter of its own.
    local.program, forked = INTERPRETER, local.program
    done = local.ranks("start", "-c", local.template)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{count} daemons serve ")
    daemons_have_no_mpi_and_no_secret_is_to_be_seen(local)
    wait_scanned(local)
    seen = [
        json.loads(local.monarch("status", "--all", "--json", "-c", local.file(r)).stdout)
        for r in (0, last)
    ]
    for found in seen:
        assert found["schema"] == 1
        nodes = found["nodes"]
        assert [node["rank"] for node in nodes] == [*range(count)]
        assert all(node["answers"] and node["why"] == "" for node in nodes)
        assert len({node["status"]["pid"] for node in nodes}) == count
        assert len({node["address"] for node in nodes}) == count
        for rank, node in enumerate(nodes):
            assert node["status"]["sources"][0]["files"] == FILES
            assert node["status"]["tiers"][0]["mount_point"] == str(local.directory / f"tier{rank}")
    assert [n["address"] for n in seen[0]["nodes"]] == [n["address"] for n in seen[1]["nodes"]]
    shown = local.monarch("status", "--all", "-c", local.file(1))
    assert shown.stdout.count("serving") == count
    assert shown.returncode == 0
    local.program = forked
    again = local.ranks("start", "-c", local.template)
    assert (again.returncode, again.stderr) == (0, "")
    assert "already" in again.stdout
    file = local.file(last)
    file.write_text(file.read_text() + "# another text\n")
    changed = local.ranks("start", "-c", local.template)
    assert changed.returncode == 0
    assert f"{file} has changed since its daemon was started" in changed.stderr
    assert len(local.daemons()) == count
    stopped = local.ranks("stop", "-c", local.template)
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert stopped.stdout.count("stopped") == count
    assert local.daemons() == []


def test_a_node_that_is_gone_or_silent_is_shown(
    tree: Path, local_factory: Callable[..., Local]
) -> None:
    local = local_factory(tree, 3)
    local.start()
    pids = [local.connection(rank).ask("where")["pid"] for rank in range(3)]
    psutil.Process(pids[1]).kill()
    silent = psutil.Process(pids[2])
    silent.suspend()
    try:
        nodes = local.connection(0).ask("all")["nodes"]
    finally:
        silent.resume()
    assert [node["why"] for node in nodes] == ["", "cannot be reached", "does not answer"]
    assert [node["status"] is None for node in nodes] == [False, True, True]
    shown = local.monarch("status", "--all", "-c", local.file(2))
    assert shown.stdout.count("serving") == 2
    assert shown.returncode == 1


def test_a_daemon_alone_is_a_cluster_of_one(
    tree: Path, local_factory: Callable[..., Local]
) -> None:
    local = local_factory(tree, 1)
    assert local.monarch("start", "-c", local.file(0)).returncode == 0
    (node,) = local.connection(0).ask("all")["nodes"]
    assert (node["rank"], node["address"], node["answers"]) == (0, "", True)
    assert node["status"]["pid"] == local.connection(0).ask("where")["pid"]


def test_serve_ends_with_its_daemon_and_the_daemon_with_it(
    tree: Path, local_factory: Callable[..., Local]
) -> None:
    local = local_factory(tree, 2)
    for end in ("stop", "terminate", "kill"):
        with subprocess.Popen(
            local.command("serve", "-c", local.template),
            env=local.env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline().startswith(b"2 daemons serve ")
                daemons = local.daemons()
                assert len(daemons) == 2
                if end == "stop":
                    for rank in range(2):
                        assert local.monarch("stop", "-c", local.file(rank)).returncode == 0
                    assert process.wait(30) == 0
                elif end == "terminate":
                    process.send_signal(signal.SIGTERM)
                    process.wait(30)
                else:
                    # Kill only the processes that wait for the daemons. Do not kill mpiexec.
                    for daemon in daemons:
                        parent = daemon.parent()
                        assert parent is not None
                        parent.kill()
                    process.wait(30)
                assert psutil.wait_procs(daemons, timeout=20)[1] == []
            finally:
                process.kill()


@pytest.mark.long
def test_copies_of_an_earlier_session_are_found_again(
    tree: Path, local_factory: Callable[..., Local]
) -> None:
    local = local_factory(tree, 2, prefetch="eager")
    for rank in range(2):
        tier = {
            "mount_point": str(local.directory / f"tier{rank}"),
            "max_storage_quota": "64MiB",
            "persistent": True,
        }
        local.configure(rank, hierarchy=[tier])

    def present(rank: int) -> bool:
        (source,) = local.connection(rank).ask("status")["sources"]
        return bool(source["present"] == FILES)

    local.start()
    for rank in range(2):
        wait_until(lambda rank=rank: present(rank))  # type: ignore[misc]
        # The daemon checks a copy once more if the file was written just before it was copied. Wait
        # for the end of these checks.
        wait_until(lambda rank=rank: not local.connection(rank).ask("status")["pending"])  # type: ignore[misc]
    assert local.ranks("stop", "-c", local.template).returncode == 0
    local.start()
    for rank in range(2):
        wait_until(lambda rank=rank: present(rank))  # type: ignore[misc]
        assert local.connection(rank).ask("status")["totals"]["source_bytes_read_by_fills"] == 0


def test_one_node_needs_no_mpi(
    tree: Path, tmp_path: Path, local_factory: Callable[..., Local]
) -> None:
    local = local_factory(tree, 1)
    trap, sprung = tmp_path / "trap", tmp_path / "sprung"
    (trap / "mpi4py").mkdir(parents=True)
    (trap / "mpi4py" / "__init__.py").write_text(f"open({str(sprung)!r}, 'w')\nraise ImportError\n")
    for env in ({}, {"PMI_SIZE": "1", "PMI_RANK": "0"}):
        done = local.monarch(
            "start", "-c", local.template if env else local.file(0), PYTHONPATH=str(trap), **env
        )
        assert done.returncode == 0, done.stderr
        assert local.monarch("stop", "-c", local.file(0), PYTHONPATH=str(trap)).returncode == 0
    alone = {"PMI_SIZE": "2", "PMI_RANK": "0"}
    done = local.monarch("start", "--alone", "-c", local.file(0), PYTHONPATH=str(trap), **alone)
    assert done.returncode == 0, done.stderr
    assert not sprung.exists()
    # With several ranks, `start` imports mpi4py. In this test, it finds a fake mpi4py in `trap`,
    # which makes the file `sprung`.
    done = local.monarch("start", "-c", local.file(0), PYTHONPATH=str(trap), **alone)
    assert done.returncode == 3
    assert done.stderr.startswith("monarch: 2 processes were started together, which needs mpi4py")
    assert done.stderr.count("\n") == 1
    assert sprung.exists()


def daemons_have_no_mpi_and_no_secret_is_to_be_seen(local: Local) -> None:
    for daemon in local.daemons():
        maps = Path(f"/proc/{daemon.pid}/maps").read_text()
        assert "libmpi" not in maps
        assert "mpi4py" not in maps
        # The daemon receives the cluster's secret through a descriptor. The daemon's command line
        # contains only the number of this descriptor.
        *_, config, told = daemon.cmdline()
        assert config.endswith(".yaml")
        assert told.isdigit()
        seen = " ".join([*daemon.cmdline(), *daemon.environ().values()])
        assert not re.search("[0-9a-f]{64}|[A-Za-z0-9+/]{43}=", seen)
