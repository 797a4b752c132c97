"""Tests which opens wait for a copy instead of opening the source, and for how long."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from csrc.units.loading import Made, ffi

from monarch_py.native import Reason, State
from monarch_py.native import lib as native

ABSENT, WANTED, FILLING, PRESENT, BYPASS = State
UNIT, MIB = native.MONARCH_UNIT, 1 << 20
MS, SECOND = 10**6, 10**9
ENTRY, SLOT = 5, 3
DEV, INO = 7, 1234


def word(state: int, copy: int = 9) -> int:
    return state | copy << 12


class Opens:
    """Opens the file of ENTRY. If an open waits, the wait is not real: it ends at once, with a
    result that the test chooses. The file's size is one unit. A fill of the file is queued, and
    programs may not read the file directly."""

    def __init__(self, lib: Any, session: Made) -> None:
        self.lib, self.session, self.entry = lib, session, session.entries[ENTRY]
        session.control.source[0].dev = DEV
        self.entry.ino, self.entry.size, self.entry.word = INO, UNIT, word(FILLING)
        self.took(SECOND // 4)

    def took(self, ns: int) -> None:
        """Sets the mean time of an open and the mean time of a read to `ns`."""
        self.lib.progress_forget()
        self.lib.progress_took(ns, ns)

    def begin(self, number: int | None = None) -> None:
        """Simulates that a copying thread has begun the fill."""
        self.session.fills.word[SLOT] = number or self.entry.word

    def open(
        self, answer: int = 1, flags: int = 0, is_alone: int = 0, entry: int = ENTRY,
        has_copy: bool = True,
    ) -> str:  # fmt: skip
        """Returns "wait" if the open has waited. Returns "demand" if it has only moved the fill to
        the front of the queue. Returns "" if it has done neither.

        answer : result of the wait
        has_copy : whether the look at the catalog after the wait finds a copy
        """
        self.lib.open_wait_answer(answer, has_copy)
        is_served = self.lib.open_wait_at(self.session.s, entry, flags, is_alone)
        waits, demands = self.lib.open_wait_waits(), self.lib.open_wait_demands()
        assert waits + demands <= 1
        looks = bool(waits and answer)
        assert (is_served, self.lib.open_wait_looks()) == (looks and has_copy, looks)
        return "wait" if waits else "demand" if demands else ""

    def limit(self) -> int:
        return int(self.lib.open_wait_limit())


@pytest.fixture
def opens(lib: Any, session: Made) -> Iterator[Opens]:
    lib.open_wait_note(1)
    yield Opens(lib, session)
    lib.open_wait_answer(-1, 0)
    lib.open_wait_note(1)
    lib.progress_forget()
    lib.wait_forget()


@pytest.mark.parametrize(
    ("state", "does"),
    [(ABSENT, ""), (WANTED, ""), (FILLING, "wait"), (PRESENT, ""), (BYPASS, "")],
)
def test_an_open_waits_only_for_a_fill(opens: Opens, state: State, does: str) -> None:
    """No fill is under way for a file whose copy was only requested. So an open must not wait for
    such a file."""
    opens.entry.word = word(state)
    assert opens.open() == does
    assert opens.open(has_copy=False) == does, "the copy was removed after the wait"
    # From now on, programs may read the file directly.
    opens.session.control.handed_bytes = UNIT
    assert opens.open() == does


@pytest.mark.parametrize("case", ["alone", "changed", "off", "fast", "empty", "flags", "unknown"])
def test_an_open_that_no_copy_can_serve_does_not_wait(opens: Opens, case: str) -> None:
    control, is_alone, flags, entry = opens.session.control, 0, 0, ENTRY
    opens.entry.flags = native.MONARCH_OF_OTHERS
    control.handed_bytes = 4 * MIB
    assert opens.open() == "wait"
    if case == "alone":
        is_alone = 1
    elif case == "changed":
        native.monarch_mark_changed(opens.session.clients, DEV, INO)
    elif case == "off":
        opens.lib.attach_switch(opens.session.s, 1)
    elif case == "fast":
        control.fast_sources = 1
    elif case == "empty":
        opens.entry.size = 0
    elif case == "flags":
        flags = os.O_DIRECT
    elif case == "unknown":
        entry = -2
    assert opens.open(1, flags, is_alone, entry) == ""
    opens.lib.attach_switch(opens.session.s, 0)


@pytest.mark.parametrize("answer", [0, 1])
def test_a_file_of_another_node_is_waited_for(opens: Opens, answer: int) -> None:
    """Nodes that share the files fill them from each other. So an open waits even if no fill is
    under way on its node. Its wait has the limit 0, which stands for the default limit of a wait
    for a whole file. After a wait without success, some of the next waits are skipped. A wait for a
    file of one unit is never skipped, and never causes other waits to be skipped."""
    control, entry = opens.session.control, opens.entry
    control.handed_bytes, entry.flags = 4 * MIB, native.MONARCH_OF_OTHERS
    entry.word = word(ABSENT)
    for _ in range(3):
        assert opens.open(answer) == "wait" and opens.limit() == 0
    assert not opens.lib.open_wait_skips()
    entry.size = UNIT + 1
    assert [opens.open(answer) for _ in range(4)] == (["wait"] * 4 if answer else [
        "wait", "", "wait", ""])  # fmt: skip
    assert opens.limit() == 0
    opens.lib.open_wait_note(1)
    for size, does in ((4 * MIB, "wait"), (4 * MIB + 1, "")):
        entry.size = size
        assert opens.open(1) == does
    entry.size, control.handed_bytes = UNIT, UNIT - 1
    entry.word = word(FILLING)
    assert opens.open(1) == "wait" and opens.limit() > 0, "it is filled like any other file"
    entry.word = word(ABSENT)
    assert opens.open(1) == ""


@pytest.mark.parametrize("size", [1, UNIT, UNIT + 1, 4 * MIB])
@pytest.mark.parametrize("answer", [0, 1])
def test_a_fill_of_what_programs_could_read_is_waited_for(
    opens: Opens, size: int, answer: int
) -> None:
    """The fill reads the file at the source. If the program read it there too, the source would
    send the bytes twice. So the open waits. The wait has the limit 0, which stands for the default
    limit of a wait for a whole file."""
    opens.session.control.handed_bytes, opens.entry.size = 4 * MIB, size
    expected = ["wait"] * 4 if answer else ["wait", "", "wait", ""]
    assert [opens.open(answer) for _ in range(4)] == expected
    assert opens.limit() == 0


def test_a_large_file_is_not_waited_for(opens: Opens) -> None:
    """An open waits for a file of at most one unit. It waits for a larger file only if programs may
    read the file directly, that is, if the file has at most `handed_bytes` bytes, and the kernel
    keeps its pages."""
    for size, handed, does in (
        (UNIT, 0, "wait"), (UNIT + 1, 0, ""), (4 * MIB, 4 * MIB, "wait"), (4 * MIB + 1, 4 * MIB, "")
    ):  # fmt: skip
        opens.entry.size, opens.session.control.handed_bytes = size, handed
        assert opens.open() == does
    opens.entry.size, opens.session.control.handed_bytes = UNIT + 1, 4 * MIB
    setattr(opens.session.control, "pageless_sources", 1)  # noqa: B010
    assert opens.open() == ""


@pytest.mark.parametrize(
    ("handed", "took", "is_worth"),
    [(0, 1, False), (0, 83_000, False), (0, 84_000, True), (0, SECOND, True),
     (UNIT, 1, False), (UNIT, 99_999, False), (UNIT, 100_000, True), (UNIT, SECOND, True)],
)  # fmt: skip
def test_a_wait_is_made_only_for_a_slow_source(
    opens: Opens, handed: int, took: int, is_worth: bool
) -> None:
    """A wait itself costs some system calls, so it saves no time if the source is fast. took: time
    of an open at the source, and also of a read [ns]."""
    opens.session.control.handed_bytes = handed
    opens.took(took)
    does = opens.open()
    assert does == ("wait" if is_worth else "" if handed else "demand")
    if is_worth and not handed:
        assert opens.limit() == min(2 * took // 5 * 6, SECOND)
        assert opens.lib.open_wait_bytes() == UNIT
    assert opens.lib.open_wait_is_instead() == (is_worth and not handed)


def test_without_a_measured_open_only_direct_fills_are_waited_for(opens: Opens) -> None:
    opens.lib.progress_forget()
    assert opens.open() == "demand"
    opens.session.control.handed_bytes = UNIT
    assert opens.open() == "wait"


def test_an_open_that_skips_its_wait_moves_a_queued_fill_forward(opens: Opens) -> None:
    """A demand moves the fill to the front of the queue. If a thread works on the fill already, the
    open makes no demand."""
    assert [opens.open(0) for _ in range(6)] == [
        "wait", "demand", "wait", "demand", "demand", "demand"]  # fmt: skip
    opens.lib.open_wait_note(0)
    opens.begin()
    assert opens.open(0) == ""
    opens.begin(word(FILLING, copy=10))  # of another copy
    assert opens.open(0) == "demand"


# --- opens after which the library sees no reads --------------------------------------------------


class Copies(Opens):
    def wait(self, answer: int = 1, served: int = 0, by: int = 0, entry: int = ENTRY) -> bytes:
        """Acts as an open such as fopen, which waits for a copy. Returns the copy's path, or b"" if
        there is no copy."""
        out = ffi.new("char[]", 4096)
        self.lib.open_wait_answer(answer, 0)
        is_there = self.lib.open_wait_for_copy(self.session.s, entry, served, by, out)
        assert is_there in (0, 1)
        return os.fsencode(ffi.string(out)) if is_there else b""

    def waits(self) -> int:
        return int(self.lib.open_wait_waits())


@pytest.fixture
def copies(lib: Any, session: Made) -> Iterator[Copies]:
    one = Copies(lib, session)
    tier = session.control.tier[0]
    session.control.tiers, tier.usable, tier.path, tier.path_len = 1, 1, b"/tier/", 6
    session.control.fill_on_open = 1
    yield one
    lib.open_wait_answer(-1, 0)
    lib.progress_forget()


def is_wanted(session: Made) -> bool:
    return bool(session.clients.wanted.word[ENTRY // 64] >> (ENTRY % 64) & 1)


@pytest.mark.parametrize("state", [ABSENT, WANTED, FILLING, PRESENT, BYPASS])
def test_the_copy_is_taken_once_it_is_there(copies: Copies, state: State) -> None:
    """If no copy was requested yet, the open requests one before it waits. It does not wait for a
    file that bypasses the tiers."""
    copies.entry.word = word(state)
    path = copies.wait()
    assert copies.waits() == (state != BYPASS)
    assert is_wanted(copies.session) == (state == ABSENT)
    assert path.startswith(b"/tier/") == (state == PRESENT)


@pytest.mark.parametrize("case", ["served", "changed", "unknown", "not requested"])
def test_there_is_nothing_to_wait_for(copies: Copies, case: str) -> None:
    copies.entry.word = word(ABSENT)
    served, entry = 0, ENTRY
    if case == "served":
        served = 1
    elif case == "changed":
        native.monarch_mark_changed(copies.session.clients, DEV, INO)
    elif case == "unknown":
        entry = -1
    else:
        copies.session.control.fill_on_open = 0
    assert copies.wait(1, served, 0, entry) == b""
    assert copies.waits() == 0


def test_a_copy_of_another_file_is_not_taken(copies: Copies) -> None:
    """If the entry describes another file after the wait (its version has changed), the open does
    not use the entry's copy."""
    copies.entry.version, copies.entry.word = 4, word(PRESENT)
    assert copies.wait()
    assert copies.wait(by=2) == copies.wait(by=-2) == b""
    assert copies.wait(answer=0) == b"", "the wait ended without a copy"
    copies.entry.word = BYPASS | Reason.CHANGED << 4
    assert copies.wait() == b""
