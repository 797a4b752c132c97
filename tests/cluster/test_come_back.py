"""After one of several daemons has died, a second run of the same `start` command starts this
daemon again. The daemon then rejoins the daemons that still serve."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from cluster.conftest import Local, why_no_mpi
from support.draws import sized
from support.session import wait_until

VICTIM = 1
# The number of daemons in tests that kill one daemon and need only one other daemon. It is small,
# because a start takes a second of CPU time for each rank.
FEW = sized(2, 3)


@pytest.fixture
def local(tree: Path, local_factory: Callable[..., Local]) -> Local:
    """Three daemons that were started together, of which one has just been killed."""
    return with_one_killed(local_factory(tree, 3))


@pytest.fixture
def few(tree: Path, local_factory: Callable[..., Local]) -> Local:
    """FEW daemons that were started together, of which one has just been killed."""
    return with_one_killed(local_factory(tree, FEW))


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """The same as `few`, but shared by tests that leave everything as they find it."""
    if missing := why_no_mpi():
        pytest.skip(missing)
    place = tmp_path_factory.mktemp("standing")
    (place / "source").mkdir()
    (place / "source" / "file").write_bytes(b"content")
    with Local(place / "nodes", place / "source", FEW) as local:
        yield with_one_killed(local)


def source_of(local: Local) -> Path:
    return local.directory.parent / "source"


def with_one_killed(local: Local) -> Local:
    local.start()
    psutil.Process(pid_of(local, VICTIM)).kill()
    left = local.count - 1
    wait_until(lambda: len(local.daemons()) == left, what="the end of the daemon that was killed")
    return local


@contextmanager
def configured(local: Local, *ranks: int, **settings: Any) -> Iterator[None]:
    """Inside this context, the configuration files of these ranks have additional settings."""
    before = {local.file(rank): local.file(rank).read_text() for rank in ranks}
    for rank in ranks:
        local.configure(rank, **settings)
    try:
        yield
    finally:
        for file, text in before.items():
            file.write_text(text)


def pid_of(local: Local, rank: int) -> int:
    return int(local.connection(rank).ask("where")["pid"])


def seen_by(local: Local, rank: int) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = local.connection(rank).ask("all")["nodes"]
    return nodes


def serve_together(local: Local) -> None:
    """Asserts that all daemons see each other."""
    for rank in range(local.count):
        wait_until(lambda rank=rank: local.connection(rank).ask("status")["scanned"])  # type: ignore[misc]
        nodes = seen_by(local, rank)
        assert [node["why"] for node in nodes] == [""] * local.count
        assert len({node["status"]["pid"] for node in nodes}) == local.count


def read_all(local: Local, rank: int, tree: Path) -> int:
    """Runs a program that this rank's daemon serves and that reads every file. Checks that the
    files have the same checksums as without Monarch. Returns how many bytes this rank's daemon has
    received from the other daemons so far."""
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    done = local.monarch("run", "-q", "-c", local.file(rank), "--", "sha256sum", *files)
    plain = subprocess.run(["sha256sum", *files], capture_output=True, text=True, check=True)
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    status = local.connection(rank).ask("status")
    return int(status["totals"]["bytes_from_peers"])


def test_it_comes_back_to_those_that_serve(local: Local, tree: Path) -> None:
    """The restarted daemon gets its old address, which another process holds at first."""
    before = {rank: pid_of(local, rank) for rank in (0, 2)}
    session = local.session(local.file(VICTIM))
    last_words = session.log.read_bytes() + b"and why it died\n"
    session.log.write_bytes(last_words)
    addresses = [node["address"] for node in seen_by(local, 0)]
    # A start that is refused changes nothing.
    host, _, port = addresses[VICTIM].rpartition(":")
    line = refusal_of_the_address(local)
    assert f"#1: the running daemons expect this node at {host}, port {port}, but" in line
    assert "Address already in use" in line
    done = local.ranks("start", "-c", local.template)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("2 of 3 daemons already served ")
    assert done.stdout.endswith(f"the others were started again, on {socket.gethostname()}#1\n")
    assert {rank: pid_of(local, rank) for rank in (0, 2)} == before
    assert session.log_before.read_bytes() == last_words
    assert b"and why it died" not in session.log.read_bytes()
    serve_together(local)
    assert [node["address"] for node in seen_by(local, 0)] == addresses

    # Files are exchanged in both directions: the daemon gets files from the others, and gives files
    # to them.
    def is_asked_again() -> bool:
        nodes = local.connection(0).ask("status")["nodes"]
        return bool(nodes["members"][VICTIM]["usable"])

    wait_until(is_asked_again, what="a peer that is asked again")
    wait_until(lambda: read_all(local, VICTIM, tree) > 0)

    def has_given() -> bool:
        read_all(local, 0, tree)
        return bool(local.connection(VICTIM).ask("status")["nodes"]["served_bytes"] > 0)

    wait_until(has_given)


def test_it_may_be_in_the_foreground(few: Local) -> None:
    """`serve` starts the missing daemon again in the foreground. The command runs until this daemon
    ends, no matter what the other daemons do."""
    with subprocess.Popen(
        few.command("serve", "-c", few.template),
        env=few.env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith(f"{FEW - 1} of {FEW} daemons already served ")
            serve_together(few)
            assert process.poll() is None
            assert few.monarch("stop", "-c", few.file(VICTIM)).returncode == 0
            assert process.wait(30) == 0
            assert len(few.daemons()) == FEW - 1
        finally:
            process.kill()


def refusal(local: Local, status: int = 3) -> str:
    """Runs `start`, which must fail and leave the running daemons alone. Returns the only line that
    it prints."""
    pids = {daemon.pid for daemon in local.daemons()}
    done = local.ranks("start", "-c", local.template)
    assert done.returncode == status, done.stderr
    (line,) = done.stderr.splitlines()
    assert {daemon.pid for daemon in local.daemons()} == pids
    return line


def refusal_of_the_address(local: Local) -> str:
    """Returns what `start` says while another process listens at the killed daemon's address."""
    host, _, port = seen_by(local, 0)[VICTIM]["address"].rpartition(":")
    with socket.create_server((host, int(port))):
        return refusal(local)


def test_who_keeps_what_has_to_stay(standing: Local) -> None:
    tier = {"mount_point": str(standing.directory / "tier1"), "max_storage_quota": "3MiB"}
    with configured(standing, VICTIM, hierarchy=[tier]):
        line = refusal(standing)
    assert "the quotas are 3145728 bytes, but the running daemons were started with 2097152" in line


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [("exclude", ["*.tar"], "['*.tar']"), ("min_size", "1KiB", "1024 bytes")],
)
def test_what_all_agreed_on_has_to_stay(
    standing: Local, key: str, value: object, shown: str
) -> None:
    """A restarted daemon must have the settings with which the running daemons were started, even
    if all configuration files have changed since."""
    sources = [{"path": str(source_of(standing)), key: value}]
    with configured(standing, *range(FEW), sources=sources):
        line = refusal(standing)
    assert f"#1: sources[0].{key} is {shown}, but on the nodes with running daemons it" in line


def test_a_daemon_alone_in_its_place_is_named(standing: Local) -> None:
    """In the place of the killed daemon, a job has started a daemon that serves only its own node.
    `start` refuses to start the killed daemon again, and names the other daemon."""
    assert standing.monarch("start", "-c", standing.file(VICTIM)).returncode == 0
    try:
        line = refusal(standing)
    finally:
        assert standing.monarch("stop", "-c", standing.file(VICTIM)).returncode == 0
    assert line.startswith(f"monarch: {socket.gethostname()}#1: a daemon serves this configuration")


def test_it_does_not_start(standing: Local) -> None:
    tier = standing.directory / "tier1"
    shutil.rmtree(tier)
    try:
        assert "#1: " in refusal(standing, status=2)
    finally:
        tier.mkdir()


def test_another_tree_is_there_now(standing: Local) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    tree, other = source_of(standing), standing.directory / "other"
    other.mkdir()
    inside = f'unshare --mount sh -c \'mount --bind {other} {tree} && exec "$@"\' sh "$@"'
    standing.prefix = [
        *("sh", "-c", f'if [ "$PMI_RANK" = 1 ]; then {inside}; else exec "$@"; fi', "sh")
    ]
    try:
        line = refusal(standing)
    finally:
        standing.prefix = []
    assert f"#1: {tree} is not the same directory as on {socket.gethostname()}#0 " in line


def test_those_that_are_there_are_stopped_and_the_others_named(few: Local) -> None:
    done = few.ranks("stop", "-c", few.template)
    assert done.returncode == 3
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("monarch: "))
    assert line.startswith(f"monarch: {socket.gethostname()}: no daemon serves this configuration")
    assert few.daemons() == []


def test_a_daemon_alone_has_no_cluster_to_tell(
    tree: Path, local_factory: Callable[..., Local]
) -> None:
    local = local_factory(tree, 1)
    assert local.monarch("start", "-c", local.file(0)).returncode == 0
    with pytest.raises(Exception, match="serves this node alone"):
        local.connection(0).ask("cluster")
