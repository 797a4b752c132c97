"""Tests that a fetch returns the requested bytes, or a status that says why it failed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peers.offers import (
    BLOCK,
    NOWHERE,
    Offer,
    fetch,
    fetch_all,
    party,
    peer_of,
    serve,
    sums_of,
)
from support.draws import examples

from benchmarks.peers.fileserver import FileServer
from benchmarks.peers.ranges import FileId, fetch_ranges, new_gets
from monarch_py.errors import SessionError
from monarch_py.peers.peer import Peer
from monarch_py.peers.server import listen
from monarch_py.peers.status import PeerStatus

CONTENT = os.urandom(5 * BLOCK + 1234)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Peer, dict[str, FileId]]]:
    """Yields a peer, and its two files. The peer's server knows the checksums of only one of these
    files. The tests that share this server do not change its files."""
    with PeerServerContext() as server, Offer(CONTENT, 1) as known, Offer(CONTENT, 2) as unknown:
        known.share(server)
        unknown.share(server, known=False)
        peer = peer_of(server)
        yield peer, {"known": known.id, "unknown": unknown.id}
        peer.close()


class PeerServerContext:
    def __enter__(self) -> FileServer:
        self._server = serve(listen("127.0.0.1"))
        return self._server

    def __exit__(self, *_: object) -> None:
        self._server.close()


@settings(max_examples=examples(25), deadline=None)
@given(
    which=st.sampled_from(["known", "unknown"]),
    edges=st.lists(
        st.one_of(
            st.integers(0, len(CONTENT)),
            st.integers(0, 5).map(lambda block: block * BLOCK),
        ),
        min_size=2,
        max_size=12,
    ),
)
def test_any_ranges_are_the_files_bytes(
    shared: tuple[Peer, dict[str, FileId]], which: str, edges: list[int]
) -> None:
    peer, files = shared
    ranges = [(min(a, b), abs(a - b)) for a, b in pairwise(edges)]
    status, parts = fetch_all(peer, [files[which]] * len(ranges), ranges)
    assert set(status) == {PeerStatus.OK}
    assert parts == [CONTENT[first : first + length] for first, length in ranges]


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
@pytest.mark.parametrize("known", [True, False])
def test_whole_files_of_every_kind_of_size(
    server: FileServer, offer: Callable[..., Offer], size: int, known: bool
) -> None:
    file = offer(os.urandom(size)).share(server, known=known)
    assert fetch(peer_of(server), file.id) == (PeerStatus.OK, file.content)


def test_into_a_file_and_nowhere_else(
    server: FileServer, offer: Callable[..., Offer], tmp_path: Path
) -> None:
    file = offer(CONTENT).share(server)
    gets = new_gets([file.id, file.id])
    with (tmp_path / "copy").open("wb+") as copy:
        gets["to"], gets["at"] = copy.fileno(), (100, 100 + len(CONTENT))
        gets["first"][1], gets["length"][1] = BLOCK, 777
        fetch_ranges(peer_of(server), gets)
        copied = copy.read()
    assert copied == bytes(100) + CONTENT + CONTENT[BLOCK : BLOCK + 777]
    assert gets["received"].tolist() == [len(CONTENT), 777]


def test_more_requests_than_are_under_way_at_once(
    server: FileServer, offer: Callable[..., Offer]
) -> None:
    files = [offer(os.urandom(i * 37), number=i + 1).share(server) for i in range(300)]
    status, parts = fetch_all(
        peer_of(server), [file.id for file in files], [(0, file.id.size) for file in files]
    )
    assert set(status) == {PeerStatus.OK}
    assert parts == [file.content for file in files]
    assert server.counts()["accepted"] == 1


def test_one_answer_that_is_none_leaves_the_others(
    server: FileServer, offer: Callable[..., Offer]
) -> None:
    file = offer(CONTENT).share(server)
    other_size = FileId(file.id.source, file.id.path_hash, file.id.size + 1, file.id.mtime_ns)
    other_time = FileId(file.id.source, file.id.path_hash, file.id.size, file.id.mtime_ns + 1)
    other_source = FileId(file.id.source + 1, file.id.path_hash, file.id.size, file.id.mtime_ns)
    never = FileId(0, 1, 10, 5)
    files = [never, file.id, other_size, other_time, other_source, file.id, file.id]
    whole = (0, len(CONTENT))
    peer = peer_of(server)
    ranges = [(0, 10), whole, whole, whole, whole, (1, len(CONTENT)), whole]
    status, parts = fetch_all(peer, files, ranges)
    assert status == [
        PeerStatus.UNKNOWN_FILE,
        PeerStatus.OK,
        PeerStatus.CHANGED,
        PeerStatus.CHANGED,
        PeerStatus.UNKNOWN_FILE,
        PeerStatus.REFUSED,
        PeerStatus.OK,
    ]
    assert [len(part) for part in parts] == [0, whole[1], 0, 0, 0, 0, whole[1]]
    assert server.counts()["accepted"] == 1
    assert peer.is_usable


def test_a_damaged_copy_is_seen_and_what_was_right_before_it_counts(
    server: FileServer, offer: Callable[..., Offer]
) -> None:
    file, good = offer(CONTENT).share(server), offer(CONTENT, 2).share(server)
    os.pwrite(file.fd, b"?" if CONTENT[2 * BLOCK + 9] != ord("?") else b"!", 2 * BLOCK + 9)
    peer = peer_of(server)
    status, part = fetch(peer, file.id)
    assert (status, part) == (PeerStatus.WRONG_BYTES, CONTENT[: 2 * BLOCK])
    assert peer.last_failure == PeerStatus.WRONG_BYTES
    assert fetch(peer_of(server), good.id) == (PeerStatus.OK, CONTENT)


def test_a_file_that_shrinks_cuts_the_answer(
    server: FileServer, offer: Callable[..., Offer]
) -> None:
    file, good = offer(CONTENT).share(server), offer(CONTENT, 2).share(server)
    os.ftruncate(file.fd, 3 * BLOCK + 10)
    assert fetch(peer_of(server), file.id) == (PeerStatus.CUT, CONTENT[: 3 * BLOCK])
    assert fetch(peer_of(server), good.id) == (PeerStatus.OK, CONTENT)


def test_what_cannot_be_written_here_is_not_the_peers_fault(
    server: FileServer, offer: Callable[..., Offer]
) -> None:
    file = offer(CONTENT).share(server)
    peer = peer_of(server)
    with open("/dev/full", "wb") as full:
        gets = new_gets([file.id])
        gets["to"] = full.fileno()
        fetch_ranges(peer, gets)
    assert (gets["status"][0], gets["error"][0]) == (PeerStatus.NO_ROOM, 28)
    assert peer.is_usable
    assert fetch(peer, file.id) == (PeerStatus.OK, CONTENT)


def test_a_file_shared_anew_is_the_new_one(server: FileServer, offer: Callable[..., Offer]) -> None:
    old, new = offer(b"old" * 100).share(server), offer(b"newer" * 100).share(server)
    peer = peer_of(server)
    assert len(server) == 1
    assert fetch(peer, old.id)[0] == PeerStatus.CHANGED
    assert fetch(peer, new.id) == (PeerStatus.OK, new.content)
    server.withdraw(new.id)
    assert len(server) == 0
    assert fetch(peer, new.id)[0] == PeerStatus.UNKNOWN_FILE


def test_many_threads_ask_while_files_come_and_go(
    server_factory: Callable[..., FileServer], offer: Callable[..., Offer]
) -> None:
    server = server_factory(threads=3)
    files = [offer(os.urandom(BLOCK * 3 + i), number=i + 1) for i in range(8)]
    peer, stop = peer_of(server), threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            for file in files:
                file.share(server)
            server.withdraw(files[0].id)

    def ask(number: int) -> set[PeerStatus]:
        seen = set()
        for turn in range(40):
            file = files[(number + turn) % len(files)]
            status, part = fetch(peer, file.id)
            assert part == (file.content if status == PeerStatus.OK else b"")
            seen.add(status)
        return seen

    with ThreadPoolExecutor(9) as pool:
        changing = pool.submit(come_and_go)
        try:
            seen = set().union(*pool.map(ask, range(8)))
        finally:
            stop.set()
        changing.result()
    assert PeerStatus.OK in seen
    assert seen <= {PeerStatus.OK, PeerStatus.UNKNOWN_FILE}


def test_mistakes_are_told(server: FileServer, offer: Callable[..., Offer]) -> None:
    file = offer(CONTENT)
    with pytest.raises(ValueError, match="6 blocks"):
        server.share(file.id, file.fd, BLOCK, sums_of(CONTENT)[:-1])
    with pytest.raises(OSError, match="Bad file descriptor"):
        server.share(file.id, -1, BLOCK)
    with pytest.raises(KeyError):
        server.add_block(file.id, 0, 0)
    with pytest.raises(SessionError, match=f"port {server.address[1]} .*a free port"):
        listen(*server.address)
    with pytest.raises(ValueError, match="2 bytes of digests"):
        server.share(file.id, file.fd, BLOCK, sums_of(CONTENT), b"??")
    with pytest.raises(ValueError, match="16 bytes"):
        party(NOWHERE, 0, b"short")
    server.close()
    with pytest.raises(ValueError, match="closed"):
        server.share(file.id, file.fd, BLOCK)
