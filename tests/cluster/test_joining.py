"""Tests starts of a cluster: ranks that never join the others, two starts at the same time, and the
messages of failed starts."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cluster.conftest import INTERPRETER, LIMIT_S, Local, mpiexec
from cluster.rank_server import JOIN_LIMIT

from monarch_py.cluster.local_node import _listen_again
from monarch_py.cluster.node_info import NodeInfo, check_infos
from monarch_py.daemon.starting import _last_words
from monarch_py.errors import SessionError
from monarch_py.ipc.session import SessionDir, hold
from monarch_py.peers.server import listen


def start_with(
    local: Local, *others: str, join_limit_s: float = 3.0
) -> subprocess.CompletedProcess[str]:
    """Starts two ranks as usual, and a third one that runs another command."""
    words = [*local.program, "start", "-c", str(local.template)]
    command = [mpiexec(), "-n", "2", *words, ":", "-n", "1", *others]
    done = subprocess.run(
        command,
        env=local.env(**{JOIN_LIMIT: str(join_limit_s)}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert local.daemons() == []
    return done


def test_a_rank_that_cannot_load_mpi(
    tree: Path, tmp_path: Path, local_factory: Callable[..., Local]
) -> None:
    local = local_factory(tree, 3)
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / "mpi4py.py").write_text("raise ImportError('no MPI here\\nnor there')")
    words = [*INTERPRETER, "start", "-c", str(local.template)]
    done = start_with(local, "env", f"PYTHONPATH={tmp_path / 'trap'}", *words)
    said = [line for line in done.stderr.splitlines() if line.startswith("monarch: ")]
    assert said[0].startswith("monarch: 3 processes were started together, which needs mpi4py (no")
    assert "(no MPI here); install" in said[0]


def test_a_rank_that_is_something_else(tree: Path, local_factory: Callable[..., Local]) -> None:
    # The third rank runs `true`, so the other two wait in MPI for it to join. The limit is short,
    # because each rank that waits keeps a core busy.
    done = start_with(local_factory(tree, 3), "true", join_limit_s=0.6)
    said = [line for line in done.stderr.splitlines() if line.startswith("monarch: ")]
    assert re.match(
        r"monarch: rank [01] has waited [12] s for all 3 ranks: a rank has not joined", said[0]
    )


def test_two_starts_at_once(tree: Path, local_factory: Callable[..., Local]) -> None:
    local = local_factory(tree, 2)
    both = [
        subprocess.Popen(
            local.command("start", "-c", local.template),
            env=local.env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [start.communicate(timeout=LIMIT_S) for start in both]
    assert [start.returncode for start in both] == [0, 0], said
    assert [err for _, err in said] == ["", ""]
    assert sorted("2 daemons already serve " in out for out, _ in said) == [False, True]
    assert len(local.daemons()) == 2


@pytest.mark.parametrize("is_ours", [True, False])
def test_what_has_the_address_of_a_daemon_that_died(tmp_path: Path, is_ours: bool) -> None:
    """A node's daemon has died and cannot be started again, because its address is in use. If a
    process holds the session's lock, this process is the node's earlier daemon: it still has the
    address, but does not answer. The error then contains its process ID. Otherwise the error says
    that the port must be freed."""
    session = SessionDir(tmp_path)
    lock = hold(session.lock) if is_ours else os.open(session.lock, os.O_CREAT)
    silent = rf"its earlier daemon \(process {os.getpid()}\) does not answer; end that process"
    hint = silent if is_ours else "fr"
    try:
        with listen("127.0.0.1") as held:
            host, port = held.getsockname()[:2]
            with pytest.raises(SessionError, match=f"in use.*: {hint}"):
                _listen_again(host, port, session)
    finally:
        os.close(lock)


def test_another_version_is_not_mended_in_the_configuration() -> None:
    places = [("host", str(rank)) for rank in range(2)]
    info = NodeInfo("n0", places[0], "/f", ("h", 1), None, (1,), {"Monarch": "0.1.0"}, ())
    other = replace(info, name="n1", place=places[1], agreed={"Monarch": "0.0.9"})
    expected = "n1: Monarch is 0.0.9, but on n0 it is 0.1.0; .*: install the same version there$"
    with pytest.raises(SessionError, match=expected):
        check_infos([info, other])


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("2026-11-23 21:44:24,041 monarch.nodes: node 0 of 4 keeps all\n", "status 7; see {log}"),
        ("", "status 7; see {log}"),
        ("monarch: no tier\n2026-11-23 21:44:24,041 monarch.daemon: ends\n", "no tier"),
        ("Traceback\nMemoryError: no thread\n", "MemoryError: no thread"),
    ],
)
def test_what_a_daemon_said_last(tmp_path: Path, log: str, words: str) -> None:
    session = SessionDir(tmp_path)
    session.log.write_text(log)
    said = _last_words(session, 7)
    assert said.removeprefix("it ended with ") == words.format(log=session.log)
