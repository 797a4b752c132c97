"""Tests how many files are fetched from other nodes at a time while no reader waits for them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from monarch_py.daemon.copies import engine as module
from monarch_py.daemon.copies.concurrency import FIRST, WINDOW_S, ReadsInFlight
from monarch_py.daemon.copies.engine import LEAST_FETCHES, Engine

MOST, MANY = 24, 1000


class Library(SimpleNamespace):
    """Stands for the C functions that report on the engine.

    reads : whether the engine fills from a source
    files : how many files the engine has received from peers
    """

    MONARCH_ORIGINS, MONARCH_FROM_SOURCE, MONARCH_FROM_PEER = 2, 0, 1
    MONARCH_PEER_BYTES, MONARCH_PEER_FILES = 2, 3
    reads, files = False, 0

    def monarch_engine_reads_sources(self, _: object) -> int:
        return self.reads

    def monarch_engine_count(self, _: object, what: int) -> int:
        return self.files * (4096 if what == self.MONARCH_PEER_BYTES else 1)

    def monarch_engine_pending(self, *_: object) -> int:
        return MANY


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(module, "lib", made)
    return made


@pytest.fixture
def engine() -> Engine:
    made = Engine.__new__(Engine)
    made.c, made._fetches = None, ReadsInFlight(LEAST_FETCHES, MOST)
    return made


def widths(engine: Engine, library: Library, windows: int, began_s: float = 0.0) -> list[int]:
    """Returns how many files are fetched at a time (the width) in each of `windows` windows of
    time. In each window, the number of files that peers send is proportional to the width."""
    found = []
    for window in range(windows):
        width = engine._adapted_fetches(began_s + window * WINDOW_S)
        library.files += 50 * width
        found.append(width)
    return found


def test_as_many_are_fetched_as_bring_more(engine: Engine, library: Library) -> None:
    found = widths(engine, library, 20)
    assert found[0] == FIRST
    assert found[-1] == MOST


def test_few_are_fetched_while_a_source_is_read(engine: Engine, library: Library) -> None:
    library.reads = True
    assert set(widths(engine, library, 20)) == {LEAST_FETCHES}
    library.reads = False
    found = widths(engine, library, 20, 20 * WINDOW_S)
    assert found[0] == FIRST, "the width must start anew after a phase of few fetches"
    assert found[-1] == MOST
