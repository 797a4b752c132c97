"""If a program has handed over a descriptor of a file, the engine keeps the descriptor until a fill
of the file is ordered. For this fill, the engine need not open the file again."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from daemon.engine_site import Engine
from support.session import wait_until

from monarch_py.arrays import ENTRY, pointer
from monarch_py.ipc import word
from monarch_py.native import State, ffi, lib
from monarch_py.policies.placement import TierRoom

PLENTY, NOTHING = TierRoom(1 << 20, 1000, 4096, 512), TierRoom(0, 0, 4096, 512)
# A time [s] that is several times as long as the engine's pause between two checks of the waiting
# descriptors.
WHILE_S = 0.1


@pytest.fixture
def by(engine: Engine) -> Iterator[socket.socket]:
    with engine.take_handovers() as by:
        yield by


@pytest.fixture
def shut(engine: Engine, tmp_path: Path) -> Path:
    """Gives the engine an empty directory as its source, so that it can copy only files that were
    handed over."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    fd = os.open(elsewhere, os.O_RDONLY)
    engine._descriptors.append(fd)
    lib.monarch_engine_source(engine.c, 0, fd)
    return elsewhere


def number_of(engine: Engine, name: str) -> int:
    """Returns the number under which programs claim a file that is not in the catalog."""
    ino = (engine.source / name).stat().st_ino
    return int(lib.MONARCH_MAX_ENTRIES) + 1 + ino % (int(lib.MONARCH_MAX_ENTRIES) - 1)


def hand(engine: Engine, by: socket.socket, name: str, entry: int | None = None) -> None:
    """Hands over a descriptor as the library does.

    entry : None for a file that the catalog does not know"""
    number = number_of(engine, name) if entry is None else entry
    what = ffi.new("struct monarch_handover *", {"id": number, "is_read": 1})
    end = ffi.offsetof("struct monarch_handover", "source")
    if entry is None:
        what.path_len = len(name)
        ffi.memmove(what.path, name.encode(), len(name))
        end = ffi.offsetof("struct monarch_handover", "path") + len(name) + 1
    fd = os.open(engine.source / name, os.O_RDONLY)
    engine.claim(number, lib.MONARCH_CLAIM_HANDED)
    socket.send_fds(by, [bytes(ffi.buffer(what))[:end]], [fd])
    os.close(fd)


def is_held(engine: Engine, name: str) -> bool:
    """Returns whether this process, in which the engine runs, has the file open."""
    wanted = (engine.source / name).stat()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found = os.stat(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
            return True
    return False


def is_closed(engine: Engine, name: str) -> bool:
    return not is_held(engine, name)


def stays_held(engine: Engine, name: str) -> bool:
    wait_until(lambda: is_held(engine, name), what="the descriptor's arrival", every=0.001)
    until = time.monotonic() + WHILE_S
    while time.monotonic() < until:
        if not is_held(engine, name):
            return False
        time.sleep(WHILE_S / 10)
    return True


def wanted(engine: Engine) -> list[int]:
    """Returns the catalog entries of the files that are marked as wanted, and clears the marks, as
    the daemon's loop does before it decides on fills."""
    ids = np.zeros(1024, dtype=np.uint64)
    where = pointer(ids)
    n = lib.monarch_take_bits(
        ffi.addressof(engine.clients.wanted), len(engine.catalog), where, 1024
    )
    return [int(entry) for entry in ids[:n]]


def turn(engine: Engine) -> None:
    """Makes the engine believe that the daemon's loop has taken a turn."""
    engine.is_left()


def await_made(engine: Engine, name: str, entry: int) -> None:
    engine.result()
    assert word.state(engine.catalog.words[entry]) == State.PRESENT
    wait_until(lambda: not is_held(engine, name), what="the descriptor's end")
    engine.settle()


@pytest.mark.usefixtures("shut")
def test_it_waits_for_a_grant(engine: Engine, by: socket.socket) -> None:
    for entry in range(3):
        hand(engine, by, f"f{entry}", entry)
    assert all(stays_held(engine, f"f{entry}") for entry in range(3))
    engine.grant(PLENTY)
    for _ in range(3):
        engine.result()
    for entry in range(3):
        assert word.state(engine.catalog.words[entry]) == State.PRESENT
        wait_until(partial(is_closed, engine, f"f{entry}"), what="the end of the descriptor")
        assert not engine.is_claimed(entry)
    assert sorted(engine.end_grant()["id"].tolist()) == [0, 1, 2]
    assert wanted(engine) == []


@pytest.mark.usefixtures("shut")
def test_policys_order_takes_it(engine: Engine, by: socket.socket) -> None:
    hand(engine, by, "f1", 1)
    assert stays_held(engine, "f1")
    engine.order(1)
    await_made(engine, "f1", 1)
    assert not engine.is_claimed(1)


def test_an_order_for_another_state_of_the_file_leaves_it(
    engine: Engine, by: socket.socket
) -> None:
    hand(engine, by, "f1", 1)
    assert stays_held(engine, "f1")
    engine.catalog.entries["ino"][1] += 1
    engine.grant(PLENTY)
    wait_until(lambda: not is_held(engine, "f1"), what="the end of the descriptor")
    assert word.state(engine.catalog.words[1]) == State.ABSENT
    assert wanted(engine) == [1]


def test_who_asks_for_it_has_it_back(engine: Engine, by: socket.socket) -> None:
    hand(engine, by, "f1", 1)
    assert stays_held(engine, "f1")
    engine.claim(1, lib.MONARCH_CLAIM_HANDED | lib.MONARCH_CLAIM_RECALLED)
    wait_until(lambda: not engine.is_claimed(1), what="the claim's end", every=0.001)
    assert not is_held(engine, "f1")
    wait_until(lambda: wanted(engine) == [1], what="the mark of a wanted file")


def test_it_is_closed_in_the_end(engine: Engine, by: socket.socket) -> None:
    """The daemon's loop learns of the file, but then takes two turns without ordering a fill of the
    file. After that, the engine closes the descriptor that was handed over."""
    engine.grant(NOTHING)
    hand(engine, by, "f1", 1)
    wait_until(lambda: engine.clients.doorbell > 0, what="a ring for the loop")
    assert wanted(engine) == [1]
    assert stays_held(engine, "f1")
    turn(engine)
    assert stays_held(engine, "f1")
    turn(engine)
    wait_until(lambda: not is_held(engine, "f1"), what="the end of the descriptor")
    assert wanted(engine) == []


def test_one_of_a_file_without_an_entry_becomes_known(engine: Engine, by: socket.socket) -> None:
    (engine.source / "new").write_bytes(os.urandom(3000))
    known = len(engine.catalog)
    hand(engine, by, "new")
    assert stays_held(engine, "new")
    engine.grant(PLENTY, meets=1)
    await_made(engine, "new", known)
    assert engine.catalog.path(known) == "new"
    assert engine.catalog.find(0, "new") == known
    assert not engine.is_claimed(number_of(engine, "new"))
    read = np.zeros(1024, dtype=np.uint64)
    n = lib.monarch_take_bits(ffi.addressof(engine.clients.read), known + 1, pointer(read), 1024)
    assert read[:n].tolist() == [known], "the file does not count as read by its program"


def test_policy_is_told_of_one_that_the_engine_may_not_take(
    engine: Engine, by: socket.socket
) -> None:
    (engine.source / "new").write_bytes(os.urandom(3000))
    engine.grant(PLENTY)
    hand(engine, by, "new")
    wait_until(lambda: engine.clients.doorbell > 0, what="a ring for the loop")
    entries, pool = np.zeros(4, dtype=ENTRY), ffi.new("char[]", 4 * lib.MONARCH_SCAN_HINT_PATH)
    where = pointer(entries)
    assert lib.monarch_engine_unmet(engine.c, 0, 0, where, 4, pool) == 1
    assert ffi.string(pool) == b"new"
    assert lib.monarch_engine_unmet(engine.c, 0, 0, where, 4, pool) == 0, (
        "the unknown file was reported twice"
    )
    known = len(engine.catalog)
    engine.catalog.add(entries[:1].copy(), pool)
    assert stays_held(engine, "new")
    engine.order(known)
    await_made(engine, "new", known)
