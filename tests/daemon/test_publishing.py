"""Tests which copies are published (made known to readers) by the threads that have made them, and
which copies are published by the daemon's loop."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from daemon.engine_site import BLOCK, FILES, SIZE, Engine
from support.session import wait_until

from monarch_py.daemon.copies.copies import Copies
from monarch_py.daemon.fill.requests import FillRequests
from monarch_py.daemon.segments import Shared
from monarch_py.ipc import word
from monarch_py.native import Kind, Reason, State, lib


def is_rung(engine: Engine) -> bool:
    return int(engine.clients.doorbell) > 0


def test_a_copy_serves_before_anybody_takes_its_result(engine: Engine) -> None:
    copy = engine.order(1)
    present = word.make(State.PRESENT, 0, 0, copy)
    wait_until(lambda: engine.word(1) == present, what="the copy")
    wait_until(lambda: engine.slots() == 0, what="the slot of its fill")
    assert not is_rung(engine), "the loop must not be woken for a single copy that is published"
    (result,) = engine.result()
    assert result["is_published"]
    assert engine.catalog.find_copy(0, int(result["copy_ino"])) == 1
    assert int(engine.catalog.entries["sum"][1]) == result["sum"]


def test_a_reader_that_waits_for_the_whole_file_is_told(engine: Engine) -> None:
    # The reader demands a unit beyond the end of the file. So no finished unit answers this demand;
    # only the end of the fill does.
    engine.clients.demand[3] = (1 + 1) << 32 | 7 << 12 | 1
    engine.order(1)
    wait_until(lambda: engine.clients.demand[3] == 0, what="the answer")


@pytest.mark.parametrize("awaited", [False, True])
def test_the_loop_is_woken_for_published_copies_only_if_it_says_so(
    engine: Engine, awaited: bool
) -> None:
    lib.monarch_engine_await(engine.c, awaited)
    engine.order(1)
    engine.result()
    wait_until(lambda: is_rung(engine) == awaited, what="the call for the loop")


def changed(engine: Engine) -> None:
    engine.change(1)


def lost(engine: Engine) -> None:
    lib.monarch_lose_tier(engine.catalog.writer, 0)


def full(engine: Engine) -> None:
    engine.catalog.c.copies_used = engine.catalog.c.slots


@pytest.mark.parametrize("happens", [changed, lost, full])
def test_what_is_not_to_be_published_is_left_to_the_loop(
    engine: Engine, happens: Callable[[Engine], None]
) -> None:
    happens(engine)
    copy = engine.order(1)
    (result,) = engine.result()
    assert not result["is_published"]
    assert engine.word(1) == word.make(State.FILLING, 0, 0, copy)
    assert engine.slots() == 1, "the fill must keep its slot for readers that wait"
    wait_until(lambda: is_rung(engine), what="the call for the loop")
    engine.settle()
    assert engine.slots() == 0


@pytest.mark.parametrize("word", [word.make(State.BYPASS), word.make(State.FILLING, 0, 0, 99)])
def test_a_copy_that_its_entry_does_not_wait_for_is_not_published(
    engine: Engine, word: np.uint64
) -> None:
    engine.order(1, int(word))
    (result,) = engine.result()
    assert not result["is_published"]
    assert engine.word(1) == word


def test_nothing_is_lost_when_the_catalog_grows_under_it(engine: Engine) -> None:
    copies = {}
    for _ in range(20):
        for entry in range(FILES):
            copies[entry] = engine.order(entry)
        engine.catalog._resize(int(engine.catalog.c.capacity), int(engine.catalog.c.pool_bytes))
        for _ in range(FILES):
            assert engine.result()["is_published"].all()
        for entry, copy in copies.items():
            assert engine.word(entry) == word.make(State.PRESENT, 0, 0, copy)
        engine.settle()


# --- in the loop -----------------------------------------------------------------------------


class Tier:
    """A tier that records for which copies `settle` is called."""

    def __init__(self) -> None:
        self.settled: list[int] = []
        self.gone = ""

    def settle(self, numbers: Any, sizes: Any, taken: Any) -> None:
        self.settled += numbers.tolist()

    def rounded_all(self, sizes: Any) -> Any:
        return sizes.astype(np.int64)


@pytest.fixture
def copies(engine: Engine) -> Copies:
    shared = SimpleNamespace(catalog=engine.catalog, clients=engine.clients, control=engine.control)
    shared.changed = MethodType(Shared.changed, shared)
    scanner: Any = SimpleNamespace(
        shared=shared,
        tiers=[Tier()],
        keepers={},
        config=SimpleNamespace(block_size_bytes=BLOCK),
        take_stale=dict,
        take_foreign=dict,
    )
    nobody: Any = None
    return Copies(scanner, nobody)


def test_a_copy_that_serves_is_counted(engine: Engine, copies: Copies) -> None:
    copy = engine.order(1)
    assert copies.made(engine.result()).tolist() == [True]
    assert copies.tiers[0].settled == [copy]  # type: ignore[union-attr]
    assert (copies.fills, copies.filled_bytes) == (1, SIZE)
    assert engine.word(1) == word.make(State.PRESENT, 0, 0, copy)


def test_a_file_that_is_changed_while_it_is_published_loses_its_copy(
    engine: Engine, copies: Copies
) -> None:
    """A program changes the file while the engine publishes its copy: after the engine has checked
    that the file is unchanged, and before the file's entry becomes PRESENT. The file must lose this
    copy."""
    copy = engine.order(1)
    result = engine.result()
    assert result["is_published"].all()
    engine.change(1)
    # Pretend that the daemon's loop saw the mark of the change while the file was still FILLING, so
    # that the loop does not handle the mark again.
    copies._changes_seen = int(engine.clients.changes)
    assert copies.made(result).tolist() == [False]
    assert engine.word(1) == word.make(State.BYPASS, Reason.CHANGED, 0, copy)
    assert copies.dropping == 1


def test_a_copy_that_was_dropped_before_its_result_was_taken_stays_dropped(
    engine: Engine, copies: Copies
) -> None:
    copy = engine.order(1)
    result = engine.result()
    copies.clear()
    assert copies.made(result).tolist() == [False]
    assert engine.word(1) == word.make(State.ABSENT, 0, 0, copy)
    assert copies.tiers[0].settled == [copy]  # type: ignore[union-attr]
    assert copies.dropping == 1, "the copy must be removed once"


@pytest.mark.parametrize(
    ("happens", "then"),
    [
        (changed, (State.BYPASS, Reason.CHANGED)),
        (lost, (State.ABSENT, Reason.NONE)),
        (full, (State.PRESENT, Reason.NONE)),
    ],
)
def test_what_the_engine_did_not_publish_is_decided_on(
    engine: Engine,
    copies: Copies,
    happens: Callable[[Engine], None],
    then: tuple[State, Reason],
) -> None:
    generation = int(engine.control.generation)
    happens(engine)
    if happens is lost:
        copies.tier(0).gone = "for the test"
    copy = engine.order(1)
    serves = copies.made(engine.result())
    assert serves.tolist() == [then[0] == State.PRESENT]
    assert engine.word(1) == word.make(then[0], then[1], 0, copy)
    grown = int(engine.control.generation) > generation
    assert grown == (happens is full), "the catalog must grow only if its index is full"


def test_a_tier_that_is_lost_gets_nothing_more(engine: Engine, copies: Copies) -> None:
    """A tier is lost after a fill has put a copy into it, and before the daemon has taken the
    fill's result. This copy counts as lost too. The next fill puts no copy into the tier."""
    first = engine.order(1)
    result = engine.result()
    copies.lose_tier(0)
    assert engine.word(1) == word.make(State.ABSENT, 0, 0, first)
    second = engine.order(2)
    assert not engine.result()["is_published"].any()
    assert engine.word(2) == word.make(State.FILLING, 0, 0, second)
    assert copies.made(result).tolist() == [False]


def test_what_is_published_while_a_command_names_it_stays(engine: Engine) -> None:
    """`monarch warm` names a file whose copy is being made. The copy is finished before the daemon
    handles the request. The request must leave the copy as it is."""
    shared: Any = SimpleNamespace(catalog=engine.catalog, clients=engine.clients)
    wanted = FillRequests(shared, eager=False)
    copy = engine.order(1)
    engine.result()
    wanted.fill_ahead(np.array([1, 2], dtype=np.uint64), "ticket")
    assert engine.word(1) == word.make(State.PRESENT, 0, 0, copy)
    assert engine.word(2) == word.make(State.WANTED)
    assert engine.catalog.entries["kind"][1] == Kind.FILE
