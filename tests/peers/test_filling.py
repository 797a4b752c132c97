"""A server sends the blocks of an unfinished copy in order, as they become available."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from peers.offers import BLOCK, Offer, connect, fetch, peer_of, read_frame, xxh3
from support.session import wait_until

from benchmarks.peers.fileserver import FileServer
from monarch_py.native import lib
from monarch_py.peers.status import PeerStatus

BLOCKS = 9
CONTENT = os.urandom((BLOCKS - 1) * BLOCK + 555)


def block_of(number: int) -> bytes:
    return CONTENT[number * BLOCK : (number + 1) * BLOCK]


def add(server: FileServer, file: Offer, number: int) -> None:
    server.add_block(file.id, number, xxh3(block_of(number)))


def test_a_block_is_sent_before_the_next_is_there(
    server_factory: Callable[..., FileServer], offer: Callable[..., Offer]
) -> None:
    server, file = server_factory(wait_s=10), offer(CONTENT)
    server.share_filling(file.id, file.fd, BLOCK)
    with connect(server) as connection:
        connection.sendall(connection.request(file.id))
        for number in range(BLOCKS):
            wait_until(lambda: server.counts()["waiting"] == 1)
            add(server, file, number)
            kind, _, length = read_frame(connection)
            assert (kind, length) == (lib.MONARCH_PEER_DATA, len(block_of(number)))
            came = b""
            while len(came) < length:
                came += connection.recv(length - len(came))
            assert came == block_of(number)
            assert read_frame(connection)[::2] == (lib.MONARCH_PEER_SUM, xxh3(came))
        assert read_frame(connection)[::2] == (lib.MONARCH_PEER_END, PeerStatus.OK)


@pytest.mark.parametrize("seed", range(4))
def test_blocks_in_any_order_and_several_who_wait(
    server_factory: Callable[..., FileServer], offer: Callable[..., Offer], seed: int
) -> None:
    server, file = server_factory(wait_s=10), offer(CONTENT)
    server.share_filling(file.id, file.fd, BLOCK)
    order = random.Random(seed).sample(range(BLOCKS), BLOCKS)
    starts = [0, 1, BLOCK, 4 * BLOCK + 7, 8 * BLOCK]
    peer = peer_of(server, first_byte_s=10, between_s=10)
    with ThreadPoolExecutor(len(starts)) as pool:
        asked = [pool.submit(fetch, peer, file.id, at, len(CONTENT) - at) for at in starts]
        wait_until(lambda: server.counts()["waiting"] == len(starts))
        for number in order:
            add(server, file, number)
        for at, answer in zip(starts, asked, strict=True):
            assert answer.result() == (PeerStatus.OK, CONTENT[at:])
    assert server.counts()["waiting"] == 0


def test_what_does_not_come_is_said_in_time_and_the_link_goes_on(
    server_factory: Callable[..., FileServer], offer: Callable[..., Offer]
) -> None:
    server, file = server_factory(wait_s=0.3), offer(CONTENT)
    server.share_filling(file.id, file.fd, BLOCK)
    add(server, file, 0)
    peer, started = peer_of(server), time.monotonic()
    assert fetch(peer, file.id) == (PeerStatus.TIMEOUT, block_of(0))
    assert 0.29 <= time.monotonic() - started < 10
    assert peer.is_usable
    for number in range(1, BLOCKS):
        add(server, file, number)
    assert fetch(peer, file.id) == (PeerStatus.OK, CONTENT)
    assert server.counts()["accepted"] == 1
    assert server.counts()["dropped"] == 0


def test_a_fill_that_is_given_up_tells_who_waits(
    server_factory: Callable[..., FileServer], offer: Callable[..., Offer]
) -> None:
    server, file = server_factory(wait_s=10), offer(CONTENT)
    server.share_filling(file.id, file.fd, BLOCK)
    add(server, file, 0)
    peer = peer_of(server, first_byte_s=10, between_s=10)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(fetch, peer, file.id)
        wait_until(lambda: server.counts()["waiting"] == 1)
        server.withdraw(file.id)
        assert asked.result() == (PeerStatus.UNKNOWN_FILE, block_of(0))
    assert peer.is_usable


def test_no_wake_is_lost_between_looking_and_waiting(
    server_factory: Callable[..., FileServer], offer: Callable[..., Offer]
) -> None:
    """A request for a block must be answered even if the block becomes available just when the
    server begins to wait for it. A server that missed this event would wait forever, because no
    other event follows."""
    server, file = server_factory(wait_s=10), offer(b"x" * 100)
    peer = peer_of(server, first_byte_s=3)
    for turn in range(150):
        server.share_filling(file.id, file.fd, BLOCK)
        timer = threading.Timer(turn * 4e-6, server.add_block, (file.id, 0, xxh3(file.content)))
        timer.start()
        assert fetch(peer, file.id)[0] == PeerStatus.OK
        timer.join()


def test_a_server_ends_while_requests_wait(
    server_factory: Callable[..., FileServer], offer: Callable[..., Offer]
) -> None:
    server, file = server_factory(wait_s=10), offer(CONTENT)
    server.share_filling(file.id, file.fd, BLOCK)
    peer = peer_of(server, first_byte_s=10)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(fetch, peer, file.id)
        wait_until(lambda: server.counts()["waiting"] == 1)
        server.close()
        assert asked.result()[0] == PeerStatus.CUT
    assert not peer.is_usable
