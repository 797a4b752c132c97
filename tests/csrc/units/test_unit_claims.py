"""Tests claims and other small parts of csrc/shared. A claim is a slot in shared memory which says
that a program reads a file at the source."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import Made, ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import examples
from support.session import wait_until

from monarch_py.native import lib as native

HANDED, RECALLED = native.MONARCH_CLAIM_HANDED, native.MONARCH_CLAIM_RECALLED
CLAIMS = native.MONARCH_CLAIMS
TICK = 1 << native.MONARCH_CLAIM_TICK
SECOND = 1000 * TICK  # how long a claim lasts [ns]


def slot(session: Made, entry: int) -> int:
    return int(session.clients.claim[entry % CLAIMS])


def names(claim: int, entry: int) -> bool:
    return claim >> 32 == entry + 1


def test_a_claim_holds_for_a_second_and_for_its_file_alone(lib: Any, session: Made) -> None:
    """A claim says for one second that a program reads the file, also to a thread that has read the
    clock before the claim was made. It says nothing about another file, even if claims of that file
    use the same slot."""
    start = lib.shared_now()
    lib.claims_file(session.s, 7)
    end = lib.shared_now()
    assert names(slot(session, 7), 7)
    for when, is_read in (
        (start - 9 * TICK, 1), (end, 1), (start + SECOND - 2 * TICK, 1), (end + SECOND + TICK, 0)
    ):  # fmt: skip
        assert lib.claims_is_being_read(session.s, 7, 0, when) == is_read
    assert not lib.claims_is_being_read(session.s, 7 + CLAIMS, 0, end)
    assert not lib.claims_is_being_read(session.s, 8, 0, end)
    assert not lib.claims_is_in_transit(slot(session, 7), end)


def test_a_file_that_was_read_before_it_had_an_entry_is_being_read(lib: Any, session: Made) -> None:
    lib.claims_file(session.s, lib.claims_unmet(99))
    now = lib.shared_now()
    assert lib.claims_is_being_read(session.s, 3, 99, now)
    assert not lib.claims_is_being_read(session.s, 3, 98, now)


def test_a_descriptor_on_its_way_keeps_its_slot(lib: Any, session: Made) -> None:
    """After a program has handed a descriptor to the daemon, the program's claim keeps its slot
    until the daemon has closed the descriptor. No other claim takes the slot, because a thread may
    be waiting for the end of this claim. If the descriptor has not arrived after a second, the
    program counts as killed, and its claim counts as recalled."""
    claim = lib.claims_begin(session.s, 7)
    assert claim == slot(session, 7) and names(claim, 7) and claim & HANDED
    now = lib.shared_now()
    assert lib.claims_is_in_transit(claim, now)
    assert not lib.claims_is_in_transit(claim, now + SECOND + TICK)
    assert not lib.claims_is_recalled(session.s, 7, now)
    assert lib.claims_is_recalled(session.s, 7, now + SECOND + TICK)
    for other in (7, 7 + CLAIMS):
        assert lib.claims_begin(session.s, other) == 0
        lib.claims_file(session.s, other)
        lib.claims_give_up(session.s, other)
        assert slot(session, 7) == claim
    lib.claims_end(session.s, 7 + CLAIMS)
    lib.claims_cancel(session.s, 7, claim + (1 << 32))
    assert slot(session, 7) == claim
    session.clients.claim[7] = claim | RECALLED
    assert lib.claims_is_recalled(session.s, 7, now)
    lib.claims_end(session.s, 7)
    assert slot(session, 7) == 0
    assert lib.claims_is_recalled(session.s, 7, now)


def test_a_descriptor_that_was_not_sent_ends_its_claim_even_when_recalled(
    lib: Any, session: Made
) -> None:
    for flag in (0, RECALLED):
        claim = lib.claims_begin(session.s, 7)
        session.clients.claim[7] = claim | flag
        lib.claims_cancel(session.s, 7, claim)
        assert slot(session, 7) == 0


def test_an_old_claim_gives_way(lib: Any, session: Made) -> None:
    """A claim whose descriptor was handed over to the daemon counts for one second. If it is older,
    its program counts as killed, and another claim may take the slot."""
    old = lib.claims_of(7, HANDED, lib.shared_now() - SECOND - 2 * TICK)
    session.clients.claim[7] = old
    lib.claims_file(session.s, 7 + CLAIMS)
    assert names(slot(session, 7), 7 + CLAIMS)
    session.clients.claim[7] = old
    assert names(lib.claims_begin(session.s, 7 + CLAIMS), 7 + CLAIMS)


def test_the_daemon_ends_only_what_was_handed_over(lib: Any, session: Made) -> None:
    """claims_end removes a claim only if the claim's descriptor was handed over to the daemon. If a
    program reads the file again, its new claim stays until the program gives this claim up."""
    lib.claims_file(session.s, 7)
    claim = slot(session, 7)
    lib.claims_end(session.s, 7)
    assert slot(session, 7) == claim
    lib.claims_give_up(session.s, 8)
    lib.claims_give_up(session.s, 7 + CLAIMS)
    assert slot(session, 7) == claim
    lib.claims_give_up(session.s, 7)
    assert slot(session, 7) == 0


def test_texts_are_the_same_only_if_every_byte_is(lib: Any) -> None:
    """The comparison examines 16 or 8 bytes at a time. It must detect a difference in any byte of a
    text of any length, and must ignore the bytes after the text."""
    for n in range(70):
        text = bytes(i % 251 + 1 for i in range(n))
        assert lib.shared_same_bytes(text + b"a", text + b"b", n)
        for i in range(n):
            for bit in (1, 128):
                other = text[:i] + bytes([text[i] ^ bit]) + text[i + 1 :]
                assert not lib.shared_same_bytes(text, other, n), (n, i)


@given(st.integers(0, 2**64 - 1), st.sampled_from([10, 16]), st.integers(0, 20))
def test_numbers_are_written_as_python_writes_them(
    lib: Any, value: int, base: int, digits: int
) -> None:
    out = ffi.new("char[]", b"z" * 40)
    text = f"{value:0{digits}{'d' if base == 10 else 'x'}}".encode()
    assert lib.shared_number(out, value, base, digits) == len(text)
    assert ffi.string(out) == text


UNIT, UNITS = 262144, 65536


@settings(max_examples=examples(200))
@given(
    st.sampled_from([UNIT // 4, UNIT, 3 * UNIT, 4 * UNIT, 10 * UNIT, 64 * UNIT, UNIT + 4096]),
    st.one_of(st.integers(0, 2**45), st.integers(-1, 1).flatmap(
        lambda by: st.integers(0, 8).map(lambda k: by + (UNIT << k) * UNITS))),
)  # fmt: skip
def test_units_are_small_and_divide_a_block(lib: Any, block: int, size: int) -> None:
    """The unit is MONARCH_UNIT times the smallest power of two (usually 1) that satisfies two
    conditions: the unit divides the block, and the file has no more units than the bitmap of a fill
    has bits. If no power of two satisfies both, the unit is the block."""
    size = max(size, 0)
    allowed = [UNIT << k for k in range(20) if block % (UNIT << k) == 0]
    fitting = [unit for unit in allowed if -(-size // unit) <= UNITS]
    expected = fitting[0] if fitting else block
    assert lib.shared_unit_of(size, block) == expected
    assert block % expected == 0


@pytest.mark.parametrize("pages", [1, 3, 600])
def test_an_aligned_mapping_leaves_nothing_else_mapped(
    lib: Any, tmp_path: Path, pages: int
) -> None:
    """The file is mapped at a multiple of the size of a huge page. To find such an address, the
    library reserves a larger range. It must unmap the rest of this range."""
    align, page = 2 << 20, os.sysconf("SC_PAGESIZE")
    n = pages * page - 5
    path = tmp_path / "file"
    path.write_bytes(b"c" * n)

    def reserved() -> int:
        """Returns how many bytes are mapped with PROT_NONE and without a file."""
        lines = re.findall(
            r"^(\w+)-(\w+) ---p 0+ 00:00 0 *$", Path("/proc/self/maps").read_text(), re.M
        )
        return sum(int(end, 16) - int(begin, 16) for begin, end in lines)

    def is_clean() -> bool:
        """Maps the file and unmaps it. Returns whether the amount of reserved memory is then the
        same as before. Other threads of this process may reserve memory at the same time, so one
        attempt may fail."""
        before = reserved()
        with path.open("rb") as file:
            at = lib.shared_map_aligned(file.fileno(), n, align)
        assert at and at % align == 0
        beside = reserved()
        maps = Path("/proc/self/maps").read_text()
        line = re.search(rf"^{at:x}-(\w+) r--s 0+ .*file$", maps, re.M)
        assert line and int(line[1], 16) - at == pages * page
        lib.shared_unmap(at, n)
        assert lib.shared_map_aligned(-1, n, align) == 0  # the descriptor is bad
        return before == beside == reserved()

    wait_until(is_clean, what="an attempt that leaves no reserved memory")


def test_operations_keep_their_pace(lib: Any) -> None:
    """The turns of operations are one interval apart. keep_pace waits for the caller's turn. If
    this turn comes only after the time limit, the operation is refused, and the turn is left to
    another operation."""
    pace = ffi.new("uint64_t[2]", [50_000_000, 0])  # interval, time of the next turn [ns]
    start = lib.shared_now()
    assert lib.shared_keep_pace(pace, start + 10**10) == 1
    first = pace[1]
    assert start + 50_000_000 <= first <= lib.shared_now() + 50_000_000
    assert lib.shared_keep_pace(pace, first - 1) == 0
    assert pace[1] == first
    assert lib.shared_keep_pace(pace, first) == 1
    assert lib.shared_now() >= first
    assert pace[1] == first + 50_000_000
    pace[0], pace[1] = 0, first + 10**12  # no limit of the rate
    assert lib.shared_keep_pace(pace, lib.shared_now() + 10**9) == 1
    assert lib.shared_now() < first + 10**11


@pytest.mark.parametrize("limit_ms", [0, 1, 999, 1000, 1001, 12345])
def test_a_join_ends_at_its_limit(lib: Any, limit_ms: int) -> None:
    """monarch_join_limit returns the time that is `limit_ms` milliseconds from now. Its tv_nsec is
    valid."""
    ahead = lib.shared_join_limit(limit_ms)
    assert limit_ms * 10**6 <= ahead < limit_ms * 10**6 + 5 * 10**9
