"""Tests fills that the engine orders on its own between two turns of the daemon's loop. The fills
stay within the room that the loop has granted to the engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from daemon.engine_site import FILES, SIZE, Engine
from hypothesis import given, settings
from hypothesis import strategies as st
from support.session import wait_until

from monarch_py.arrays import HOME, pointer
from monarch_py.daemon.copies.copies import one
from monarch_py.ipc import word
from monarch_py.native import Kind, Reason, State, lib
from monarch_py.policies.placement import NOWHERE, TierRoom, first_fit

BLOCK_BYTES, ENTRY_BYTES = 4096, 512
NEED = 2 * BLOCK_BYTES + ENTRY_BYTES  # the room that a file of SIZE needs [bytes]
PLENTY = TierRoom(1 << 20, 1000, BLOCK_BYTES, ENTRY_BYTES)


def state(engine: Engine, entry: int) -> State:
    return State(int(word.state(engine.catalog.words[one(entry)])[0]))


def await_copy(engine: Engine, entry: int, place: int | None = None) -> None:
    """Waits until the file has a copy and its demand is answered.

    place : index in the table of demands; by default, the entry's number"""
    at = entry if place is None else place
    wait_until(
        lambda: state(engine, entry) == State.PRESENT and engine.clients.demand[at] == 0,
        what=f"the copy of file {entry}, and the reader's answer",
        every=0.0005,
    )


def await_look(engine: Engine) -> None:
    """Waits until the engine's thread has examined all demands. To be sure of that, orders a fill
    and waits for its result: the thread examines the demands before it takes up an order."""
    engine.order(FILES - 1)
    engine.result()
    engine.settle()


def await_left(engine: Engine) -> None:
    wait_until(engine.is_left, what="something that is left to the loop")


@contextmanager
def engine_of(sizes: list[int], tiers: int) -> Iterator[Engine]:
    with TemporaryDirectory() as place:
        engine = Engine(Path(place), sizes, tiers)
        try:
            yield engine
        finally:
            engine.close()


def test_what_a_reader_waits_for_is_ordered_without_the_loop(engine: Engine) -> None:
    engine.grant(PLENTY, first_copy=7)
    engine.ask(2)
    await_copy(engine, 2)
    assert not engine.is_left()
    assert engine.catalog.words[2] == word.make(State.PRESENT, 0, 0, 7)
    (placed,) = engine.end_grant()
    assert (placed["id"], placed["tier"], placed["copy"]) == (2, 0, 7)
    (result,) = engine.result()
    assert result["in_use"], "the result must say that a program uses the file"
    copy = engine.tiers[0] / f"{7:013x}"
    assert copy.read_bytes() == (engine.source / "f2").read_bytes()


def test_a_reader_that_came_without_a_grant_is_served_by_the_next_one(engine: Engine) -> None:
    engine.ask(1)
    await_look(engine)
    assert state(engine, 1) == State.ABSENT
    assert not engine.is_left(), (
        "the engine must leave nothing to the loop, which finds the demand in this turn anyway"
    )
    engine.grant(PLENTY)
    await_copy(engine, 1)


def test_nothing_is_ordered_after_the_end_of_a_grant(engine: Engine) -> None:
    engine.grant(PLENTY)
    assert not len(engine.end_grant())
    engine.ask(1)
    await_look(engine)
    assert state(engine, 1) == State.ABSENT


@pytest.mark.parametrize(
    ("room", "fit"),
    [
        (TierRoom(2 * NEED, 1000, BLOCK_BYTES, ENTRY_BYTES), 2),
        (TierRoom(2 * NEED - 1, 1000, BLOCK_BYTES, ENTRY_BYTES), 1),
        (TierRoom(1 << 20, 3, BLOCK_BYTES, ENTRY_BYTES), 3),
        (TierRoom(1 << 20, 0, BLOCK_BYTES, ENTRY_BYTES), 0),
    ],
)
def test_a_grant_is_kept_to_the_byte_and_to_the_inode(
    engine: Engine, room: TierRoom, fit: int
) -> None:
    engine.grant(room)
    for entry in range(fit):
        engine.ask(entry)
        await_copy(engine, entry)
    assert not engine.is_left()
    engine.ask(fit)
    await_left(engine)
    assert state(engine, fit) == State.ABSENT
    assert engine.clients.demand[fit] != 0, "the reader must wait for the loop's decision"
    assert len(engine.end_grant()) == fit


def test_a_refused_reader_does_not_wake_the_loop_at_every_grant(engine: Engine) -> None:
    """A reader demands a file, and the daemon's loop finds no room for it. The next grant does not
    wake the loop for the same demand again."""
    nothing = TierRoom(0, 0, BLOCK_BYTES, ENTRY_BYTES)
    engine.grant(nothing)
    engine.ask(0)
    await_left(engine)
    engine.end_grant()
    engine.grant(nothing)
    await_look(engine)
    assert not engine.is_left()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 4096, 5000, 12288, 70000]), min_size=1, max_size=8),
    st.lists(
        st.tuples(st.integers(0, 100000), st.integers(0, 4), st.sampled_from([4096, 65536])),
        min_size=1,
        max_size=3,
    ),
)
def test_files_go_where_the_policy_would_put_them(
    sizes: list[int], tiers: list[tuple[int, int, int]]
) -> None:
    rooms = [TierRoom(free, inodes, block, ENTRY_BYTES) for free, inodes, block in tiers]
    expected = first_fit(np.array(sizes, dtype=np.uint64), rooms)
    with engine_of(sizes, len(rooms)) as engine:
        engine.grant(*rooms)
        for entry, tier in enumerate(expected.tolist()):
            if tier != NOWHERE:
                engine.ask(entry)
                await_copy(engine, entry)
        assert not engine.is_left()
        for entry in np.flatnonzero(expected == NOWHERE).tolist():
            engine.ask(entry)
            await_left(engine)
        placed = engine.end_grant()
        assert placed["id"].tolist() == np.flatnonzero(expected != NOWHERE).tolist()
        assert placed["tier"].tolist() == expected[expected != NOWHERE].tolist()


def test_a_tier_of_which_a_part_is_granted_does_not_send_files_to_the_next(tmp_path: Path) -> None:
    """If the granted part of a tier has no room for a file, the engine leaves the file to the
    daemon's loop, because the tier as a whole may have room for it."""
    engine = Engine(tmp_path, tiers=2)
    try:
        small = TierRoom(NEED - 1, 1000, BLOCK_BYTES, ENTRY_BYTES)
        engine.grant(small, PLENTY, is_part=True)
        engine.ask(0)
        await_left(engine)
        assert not len(engine.end_grant())
    finally:
        engine.close()


# --- what the engine does not decide --------------------------------------------------------------


@pytest.mark.parametrize(
    "word",
    [
        word.make(State.WANTED, 0, 0, 99),
        word.make(State.ABSENT, 0, 0, 99),
    ],
)
def test_a_file_whose_copy_is_still_to_be_removed_is_left(engine: Engine, word: np.uint64) -> None:
    engine.catalog.set_words(one(1), word)
    engine.grant(PLENTY)
    engine.ask(1)
    await_left(engine)
    assert engine.catalog.words[1] == word


@pytest.mark.parametrize(
    "word",
    [
        word.make(State.BYPASS, Reason.NO_ROOM),
        word.make(State.PRESENT, 0, 0, 99),
        word.make(State.ABSENT),
    ],
)
def test_who_waits_for_what_is_settled_is_told(engine: Engine, word: np.uint64) -> None:
    """If the daemon's loop has already decided on a file, the engine answers a demand for the file
    at once. A file that is ABSENT and is not marked as wanted counts as decided: it gets no
    copy."""
    engine.catalog.set_words(one(1), word)
    engine.grant(PLENTY)
    engine.demand(1, 1)
    wait_until(lambda: engine.clients.demand[1] == 0, what="the answer")
    assert engine.catalog.words[1] == word
    assert not engine.is_left()
    assert not len(engine.end_grant())


def test_nobody_is_answered_while_the_loop_decides(engine: Engine) -> None:
    """The engine answers no demand for a file before the daemon's loop has made a grant. Before the
    grant, the loop may have read a reader's request for the file, but may not yet have marked the
    file as wanted."""
    engine.demand(1, 1)
    await_look(engine)
    assert engine.clients.demand[1] != 0
    engine.grant(PLENTY)
    wait_until(lambda: engine.clients.demand[1] == 0, what="the answer")


def test_the_loop_is_told_when_a_copy_is_gone_that_was_in_the_way(engine: Engine) -> None:
    copy = engine.order(1)
    engine.result()
    engine.settle()
    engine.catalog.set_words(one(1), word.make(State.ABSENT, 0, 0, copy))
    engine.grant(PLENTY)
    engine.ask(1)
    await_left(engine)
    assert not engine.is_left()
    engine.drop(1, copy)
    await_left(engine)


def test_what_a_client_writes_without_sense_does_nothing(engine: Engine) -> None:
    engine.catalog.entries["kind"][2] = Kind.DIR
    engine.grant(PLENTY)
    engine.ask(2)
    await_left(engine)
    engine.demand(FILES + 7, 255)
    wait_until(lambda: engine.clients.demand[255] == 0, what="the answer")
    assert not len(engine.end_grant())


def homes(engine: Engine, ids: list[int], *, is_kept: bool, asked: int = -1) -> None:
    entries = np.array(ids, dtype=np.uint64)
    said = np.zeros(len(ids), dtype=HOME)
    said["asked_first"], said["asked_then"] = asked, -1
    said["storage"] = lib.MONARCH_IN_TIERS if is_kept else lib.MONARCH_IN_STAGING
    pointers = pointer(entries), pointer(said)
    assert lib.monarch_engine_homes(engine.c, len(ids), *pointers) == 0


def test_where_nodes_share_programs_see_whose_a_file_is(engine: Engine) -> None:
    flags = engine.catalog.entries["flags"]
    homes(engine, [0], is_kept=True)
    homes(engine, [1], is_kept=True, asked=1)
    homes(engine, [2], is_kept=False)
    assert flags[:FILES].tolist()[:4] == [lib.MONARCH_OWN, lib.MONARCH_OF_OTHERS, 0, 0]
    # New attributes of a file do not change which node keeps it.
    fresh = engine.catalog.entries[:1].copy()
    fresh["flags"] = lib.MONARCH_ATTRIBUTES
    engine.catalog.update(0, fresh)
    assert flags[0] == lib.MONARCH_OWN | lib.MONARCH_ATTRIBUTES
    homes(engine, [0], is_kept=False, asked=2)
    assert flags[0] == lib.MONARCH_OF_OTHERS | lib.MONARCH_ATTRIBUTES


def test_where_nodes_share_the_engine_orders_what_this_one_keeps(engine: Engine) -> None:
    homes(engine, [0], is_kept=True)
    homes(engine, [2], is_kept=False)
    engine.grant(PLENTY)
    engine.ask(0)
    await_copy(engine, 0)
    # The engine leaves these files to the daemon's loop. File 2 is to be staged, but the grant has
    # no room in a staging area. The engine does not know which nodes keep files 1 and 3.
    for entry in (2, 1, 3):
        engine.ask(entry)
        await_left(engine)
        assert state(engine, entry) == State.ABSENT
        engine.end_grant()
        engine.grant(PLENTY)


def test_the_engine_stages_what_this_node_does_not_keep(tmp_path: Path) -> None:
    engine = Engine(tmp_path, [SIZE, SIZE, SIZE + 1, SIZE], tiers=2)
    try:
        homes(engine, [0, 1, 2], is_kept=False)
        homes(engine, [3], is_kept=True)
        nothing = TierRoom(0, 0, BLOCK_BYTES, ENTRY_BYTES)
        area = TierRoom(2 * NEED, 1000, BLOCK_BYTES, ENTRY_BYTES)
        engine.grant(PLENTY, area, staged_bytes=SIZE)
        engine.ask(0)
        await_copy(engine, 0)
        engine.ask(2)  # this file is larger than `staged_bytes`
        await_left(engine)
        assert state(engine, 2) == State.ABSENT
        engine.ask(3)
        await_copy(engine, 3)
        placed = engine.end_grant()
        assert placed["id"].tolist() == [0, 3]
        assert placed["tier"].tolist() == [1, 0], "a file that the node keeps must go to its tier"
        engine.grant(nothing, area, first_copy=2000, staged_bytes=SIZE)
        engine.catalog.set_state(one(3), State.ABSENT)
        engine.ask(3)
        await_left(engine)
        assert state(engine, 3) == State.ABSENT
    finally:
        engine.close()


# --- when the loop is late, and when the catalog grows --------------------------------------------


def test_no_more_is_ordered_than_the_loop_can_be_told_of() -> None:
    most = int(lib.MONARCH_PLACED)
    with engine_of([10] * (most + 2), 1) as engine:
        engine.grant(TierRoom(1 << 30, 1 << 20, BLOCK_BYTES, 0))
        for entry in range(most):
            engine.ask(entry, entry % 200)
            await_copy(engine, entry, entry % 200)
        engine.ask(most, 201)
        await_left(engine)
        placed = engine.end_grant()
        assert placed["copy"].tolist() == list(range(1000, 1000 + most))
        engine.grant(PLENTY, first_copy=1000 + most)
        engine.ask(most + 1, 202)
        await_copy(engine, most + 1, 202)


def test_files_are_ordered_in_the_catalog_that_clients_are_told_of(engine: Engine) -> None:
    """Files get their copies while the catalog is replaced by a new generation again and again."""
    copy = 1000
    for _ in range(20):
        engine.grant(PLENTY, first_copy=copy)
        for entry in range(FILES):
            engine.ask(entry)
            engine.catalog._resize(int(engine.catalog.c.capacity), int(engine.catalog.c.pool_bytes))
        for entry in range(FILES):
            await_copy(engine, entry)
            engine.result()
        placed = engine.end_grant()
        assert sorted(placed["id"].tolist()) == list(range(FILES))
        copy = int(placed["copy"].max()) + 1
        engine.settle()
        engine.catalog.set_state(np.arange(FILES, dtype=np.uint64), State.ABSENT)


def test_a_fill_that_fails_is_left_as_it_is(engine: Engine) -> None:
    """If the fill of a file has failed, the engine does not change the file's state. When the
    daemon's loop receives the result of the fill, it decides what to do about the file."""
    (engine.source / "f1").write_bytes(b"x" * (SIZE + 1))
    engine.grant(PLENTY, first_copy=5)
    engine.ask(1)
    wait_until(lambda: engine.clients.demand[1] == 0, what="the reader's answer")
    assert engine.catalog.words[1] == word.make(State.FILLING, 0, 0, 5)
    assert len(engine.end_grant()) == 1
    assert not list(engine.tiers[0].iterdir())
