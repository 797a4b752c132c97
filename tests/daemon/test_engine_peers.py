"""Copies that the engine makes from a peer. Whatever the peer answers, a copy has the content of
its file."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from daemon.engine_site import BLOCK, SIZE, Engine
from peers.offers import REQUEST_BYTES, Line, let_in, party, peer_at

from monarch_py.arrays import HOME, pointer
from monarch_py.daemon.copies.copies import one
from monarch_py.native import State, ffi, lib
from monarch_py.policies.placement import TierRoom
from monarch_py.storage.tiers import copy_name

LARGE, LONG = 3 * BLOCK + 1000, 6 * BLOCK + 1000
PEER = 2  # the number of the peer
ROOM = TierRoom(8 << 20, 1000, 4096, 512)


class Answerer:
    """A peer that has the files of a source. It answers each request with the next status of
    `statuses`. If the status is OK, or none is left, it sends the bytes."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listener.getsockname()
        self.statuses: list[int] = []
        self.content = b""
        self.asked: list[int] = []  # the offsets that were asked for
        self._is_over = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            if self._is_over:
                connection.close()
                return
            connection.settimeout(10)
            # The engine ends the connection after an answer that is wrong.
            with suppress(ConnectionError), let_in(connection, party(self.address)) as line:
                while self._answer(line):
                    pass

    def _answer(self, line: Line) -> bool:
        """Answers one request. Returns whether the connection stays open."""
        said = line.connection.recv(REQUEST_BYTES, socket.MSG_WAITALL)
        if len(said) < REQUEST_BYTES:
            return False
        wanted = ffi.from_buffer("struct monarch_peer_request *", said)
        self.asked.append(wanted.first)
        status = self.statuses.pop(0) if self.statuses else lib.MONARCH_PEER_OK
        answer = b""
        if status == lib.MONARCH_PEER_CUT:
            return False
        if status == lib.MONARCH_PEER_OK:
            part = self.content[wanted.first : wanted.first + wanted.length]
            answer = line.right(part, wanted.tag)
        elif status == lib.MONARCH_PEER_WRONG_BYTES:
            status = lib.MONARCH_PEER_OK
            data = line.frame(lib.MONARCH_PEER_DATA, wanted.length, wanted.tag)
            wrong = line.frame(lib.MONARCH_PEER_SUM, 7, wanted.tag, b"wrong")
            answer = data + bytes(wanted.length) + wrong
        line.sendall(answer + line.frame(lib.MONARCH_PEER_END, status, wanted.tag))
        return True

    def close(self) -> None:
        self._is_over = True
        socket.create_connection(self.address).close()
        self._thread.join()
        self.listener.close()


class Site:
    """An engine, and a peer from which it fetches files. Each request asks for one block."""

    def __init__(self, place: Path) -> None:
        self.answerer = Answerer()
        self.engine = Engine(place, [SIZE, LARGE, LONG], peer_threads=1)
        self.peer = peer_at(self.answerer.address)
        lib.monarch_engine_peer(self.engine.c, PEER, self.peer.c)

    def fill(self, entry: int, *statuses: int) -> int:
        """Makes a copy of the file, and checks the copy's content. Returns the number of the peer
        that sent all bytes, or -1 if no peer did."""
        self.answerer.statuses = list(statuses)
        self.answerer.content = (self.engine.source / f"f{entry}").read_bytes()
        copy = self.engine.order(entry, asked=PEER)
        (result,) = self.engine.result()
        assert (self.engine.tiers[0] / copy_name(copy)).read_bytes() == self.answerer.content
        self.engine.settle()
        return int(result["giver"])

    def close(self) -> None:
        self.engine.close()
        self.peer.close()
        self.answerer.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


OK, NONE = lib.MONARCH_PEER_OK, -1
COMING, TIMEOUT = lib.MONARCH_PEER_COMING, lib.MONARCH_PEER_TIMEOUT


@pytest.mark.parametrize(
    ("entry", "statuses", "giver"),
    [
        (0, [], PEER),
        (1, [], PEER),
        (0, [COMING, COMING], PEER),
        (0, [TIMEOUT] * 7, PEER),
        (0, [TIMEOUT] * 8, NONE),
        (0, [lib.MONARCH_PEER_UNKNOWN_FILE], NONE),
        (0, [lib.MONARCH_PEER_CHANGED], NONE),
        (0, [lib.MONARCH_PEER_MOVED + 5], NONE),
        (0, [lib.MONARCH_PEER_WRONG_BYTES], NONE),
        (1, [OK, *[TIMEOUT] * 8], NONE),
        (1, [OK, OK, OK, *[TIMEOUT] * 8], NONE),
        (1, [OK, OK, OK, COMING, TIMEOUT], PEER),
        (1, [OK, COMING, OK, lib.MONARCH_PEER_UNKNOWN_FILE], NONE),
        (1, [OK, lib.MONARCH_PEER_CUT, lib.MONARCH_PEER_CUT], NONE),
        (1, [OK, OK, lib.MONARCH_PEER_WRONG_BYTES], NONE),
    ],
)
def test_a_copy_is_its_file_whatever_a_peer_answers(
    site: Site, entry: int, statuses: list[int], giver: int
) -> None:
    assert site.fill(entry, *statuses) == giver


def test_a_reader_of_the_last_block_is_not_kept_waiting_by_a_peer(site: Site) -> None:
    """If a reader demands the last block first, the engine reads this block from the source. It
    does not ask a peer, because a peer whose copy is not complete yet may send its last block
    late."""
    last = LONG - LONG % BLOCK
    site.engine.demand(2, place=0, unit=last // lib.MONARCH_UNIT)
    assert site.fill(2) == NONE
    assert site.answerer.asked
    assert last not in site.answerer.asked


def test_the_rate_of_a_peer_that_has_given_a_file_is_known(site: Site) -> None:
    """The engine measures the rate at which a peer sends files. It leaves out the first file,
    because the peer may have had to wait for the source."""
    engine = site.engine
    site.answerer.content = (engine.source / "f0").read_bytes()
    home = np.zeros(1, dtype=HOME)
    home["asked_first"], home["asked_then"], home["storage"] = PEER, -1, lib.MONARCH_IN_TIERS
    assert lib.monarch_engine_homes(engine.c, 1, pointer(one(0)), pointer(home)) == 0
    given = []
    for turn in range(3):
        engine.grant(ROOM, first_copy=100 * (turn + 1))
        engine.ask(0)
        (result,) = engine.result()
        assert result["giver"] == PEER
        engine.settle()
        engine.end_grant()
        flows = ffi.new("struct monarch_flow[]", PEER + 2)
        lib.monarch_engine_flows(engine.c, flows, PEER + 2)
        given.append(sum(flows[PEER + 1].bytes))
        engine.catalog.set_state(one(0), State.ABSENT)
        engine.drop(0, int(result["copy"]))
        engine.result()
        engine.settle()
    assert given == [0, SIZE, 2 * SIZE]
