"""Three machines, made of namespaces, each with its own host name, address and shared memory."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster.conftest import mpiexec, why_no_mpi
from cluster.rank_server import rank_program
from support.files import make_tree
from support.machines import Machines, why_no_machines
from support.session import wait_until

NAMES = ["node0", "node1", "node2"]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    if missing := why_no_mpi() or why_no_machines():
        pytest.skip(missing)
    with Machines(tmp_path / "machines", len(NAMES), "1gbit") as made:
        yield made


def write(tmp_path: Path, tree: Path, **settings: Any) -> Path:
    """Writes one configuration for all machines; each has a tier in its own shared memory."""
    tier = {"mount_point": "/dev/shm", "max_storage_quota": "8MiB"}
    file = tmp_path / "tiers.yaml"
    file.write_text(yaml.safe_dump({"sources": [str(tree)], "hierarchy": [tier], **settings}))
    return file


def env() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("MONARCH_", "PMI"))}


def together(machines: Machines, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs `monarch` on all machines by means of mpiexec, which runs on the first machine. Returns
    when all of these processes have ended."""
    launch = ["-launcher", "ssh", "-launcher-exec", str(machines.launcher())]
    where = ["-hosts", ",".join(NAMES), "-ppn", "1", "-n", str(len(NAMES))]
    return machines.run(0, mpiexec(), *launch, *where, *rank_program(), *words, env=env())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("started")


@pytest.fixture(scope="module")
def tree(place: Path) -> Path:
    return make_tree(place / "source")


@pytest.fixture(scope="module")
def config(place: Path, tree: Path) -> Path:
    return write(place, tree)


@pytest.fixture(scope="module")
def started(place: Path, config: Path) -> Iterator[Machines]:
    """Machines with three running daemons, which are stopped together after all tests."""
    if missing := why_no_mpi() or why_no_machines():
        pytest.skip(missing)
    with Machines(place / "machines", len(NAMES), "1gbit") as machines:
        done = together(machines, "start", "-c", config)
        try:
            assert done.returncode == 0, done.stderr
            assert done.stdout == f"3 daemons serve {config}, on node0, node1, node2\n"
            yield machines
            done = together(machines, "stop", "-c", config)
            assert done.returncode == 0, done.stderr
            assert done.stdout.count("stopped") == 3
        finally:
            for machine in range(len(NAMES)):
                machines.run(machine, *rank_program(), "stop", "-c", config, env=env())


def nodes_seen_by(machines: Machines, machine: int, config: Path) -> list[dict[str, Any]]:
    words = ["status", "--all", "--json", "-c", str(config)]
    done = machines.run(machine, *rank_program(), *words, env=env())
    nodes: list[dict[str, Any]] = json.loads(done.stdout)["nodes"]
    assert done.returncode == (not all(node["answers"] for node in nodes)), done.stderr
    return nodes


def test_every_machine_sees_all(started: Machines, config: Path) -> None:
    def scanned(machine: int) -> list[dict[str, Any]] | None:
        nodes = nodes_seen_by(started, machine, config)
        return nodes if all(node["status"]["scanned"] for node in nodes) else None

    for machine in range(len(NAMES)):
        nodes = wait_until(partial(scanned, machine), what="the list on all machines")
        assert [node["name"] for node in nodes] == NAMES
        assert [node["answers"] for node in nodes] == [True] * 3
        hosts = [node["address"].rpartition(":")[0] for node in nodes]
        assert hosts == [started.nodes.address(i) for i in range(3)]
        # Each machine has a daemon of its own.
        assert len({node["status"]["pid"] for node in nodes}) == 3
        assert {node["status"]["sources"][0]["files"] for node in nodes} == {17}


def test_files_come_over_the_links(started: Machines, config: Path, tree: Path) -> None:
    """The machines read all files, one machine after the other. If a file is kept by another
    machine, it is read from that machine, not from the source."""
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    plain = subprocess.run(["sha256sum", *files], capture_output=True, text=True, check=True)
    wait_until(
        lambda: all(n["status"]["scanned"] for n in nodes_seen_by(started, 0, config)),
        what="the list on all machines",
    )
    for machine in range(len(NAMES)):
        words: list[str | Path] = ["run", "-q", "-c", config, "--", "sha256sum", *files]
        done = started.run(machine, *rank_program(), *words, env=env())
        assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr

    def got_and_given() -> tuple[int, int]:
        reports = [node["status"] for node in nodes_seen_by(started, 0, config)]
        got = sum(report["totals"]["bytes_from_peers"] for report in reports)
        return got, sum(report["nodes"]["served_bytes"] for report in reports)

    size = sum(file.stat().st_size for file in files)
    wait_until(lambda: min(got_and_given()) >= size, what="the files that other machines keep")


def test_a_machine_that_is_cut_off_does_not_answer(started: Machines, config: Path) -> None:
    started.nodes.set_link(2, up=False)
    nodes = nodes_seen_by(started, 0, config)
    assert [node["why"] for node in nodes] == ["", "", "does not answer"]
    # The machine that is cut off gets no answer from the others.
    alone = nodes_seen_by(started, 2, config)
    assert [node["why"] for node in alone] == ["does not answer", "does not answer", ""]
    started.nodes.set_link(2, up=True)
    wait_until(lambda: all(node["answers"] for node in nodes_seen_by(started, 0, config)))


def test_an_address_that_others_cannot_reach_is_refused(
    machines: Machines, tmp_path: Path, tree: Path
) -> None:
    config = write(tmp_path, tree, peers={"address": "127.0.0.1"})
    done = together(machines, "start", "-c", config)
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "monarch: node0: other nodes cannot reach the loopback address 127.0.0.1;"
    )
    assert "peers.interface" in line


@pytest.mark.long
def test_an_interface_can_be_named(machines: Machines, tmp_path: Path, tree: Path) -> None:
    config = write(tmp_path, tree, peers={"interface": "eth0", "port": 7321})
    try:
        done = together(machines, "start", "-c", config)
        assert done.returncode == 0, done.stderr
        addresses = [node["address"] for node in nodes_seen_by(machines, 1, config)]
        assert addresses == [f"{machines.nodes.address(i)}:7321" for i in range(3)]
    finally:
        together(machines, "stop", "-c", config)


def test_the_same_address_on_all_machines_is_refused(
    machines: Machines, tmp_path: Path, tree: Path
) -> None:
    """A start is refused if the nodes have the same address. Bridges for containers often have the
    same address on all nodes."""
    add_bridge(machines, lambda _: "172.31.0.1")
    config = write(tmp_path, tree, peers={"interface": "bridge"})
    done = together(machines, "start", "-c", config)
    assert done.returncode != 0
    assert done.stderr.startswith("monarch: node0 and node1 have the same address, 172.31.0.1, ")
    assert str(config) in done.stderr


def test_machines_that_do_not_reach_each_other_are_named(
    machines: Machines, tmp_path: Path, tree: Path
) -> None:
    """If each machine serves at an address that the others cannot reach, the start succeeds, with a
    warning."""
    add_bridge(machines, lambda machine: f"172.31.{machine}.1")
    config = write(tmp_path, tree, peers={"interface": "bridge"})
    done = together(machines, "start", "-c", config)
    try:
        assert done.returncode == 0, done.stderr
        (line,) = done.stderr.splitlines()
        assert line.startswith("monarch: warning: node0 asked node1, node2 at 172.31.1.1:")
        assert ": cannot be reached; nodes that" in line
        assert f"peers.interface in {config}" in line
    finally:
        for machine in range(len(NAMES)):
            machines.run(machine, *rank_program(), "stop", "-c", config, env=env())


def add_bridge(machines: Machines, address: Callable[[int], str]) -> None:
    for machine in range(len(NAMES)):
        for words in (
            ("link", "add", "bridge", "type", "veth", "peer", "name", "inside"),
            ("addr", "add", f"{address(machine)}/24", "dev", "bridge"),
            ("link", "set", "bridge", "up"),
            ("link", "set", "inside", "up"),
        ):
            done = machines.run(machine, "ip", *words, env=env())
            assert done.returncode == 0, done.stderr
