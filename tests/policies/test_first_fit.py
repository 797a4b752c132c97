"""First fit: answers computed by hand, and properties that hold for all files and tiers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_py.policies.placement import NOWHERE, TierRoom, first_fit

PLENTY = 1 << 40


def place(sizes: list[int], rooms: list[TierRoom]) -> list[int]:
    chosen: list[int] = first_fit(np.array(sizes, dtype=np.uint64), rooms).tolist()
    return chosen


def room(n_bytes: int, inodes: int = PLENTY, block: int = 1) -> TierRoom:
    return TierRoom(n_bytes, inodes, block)


@pytest.mark.parametrize(
    ("sizes", "rooms", "expected"),
    [
        ([], [room(10)], []),
        ([5], [], [NOWHERE]),
        ([5, 5], [room(10)], [0, 0]),
        ([5, 6], [room(10)], [0, NOWHERE]),
        # Each tier is filled up to its quota, the fastest first.
        ([4, 4, 4], [room(8), room(4)], [0, 0, 1]),
        # A file that fits into no tier does not prevent smaller files after it from being placed.
        ([3, 20, 3], [room(10)], [0, NOWHERE, 0]),
        ([3, 20, 3], [room(10), room(20)], [0, 1, 0]),
        # Files are placed in the given order, even if another order would pack better.
        ([1, 10], [room(10)], [0, NOWHERE]),
        # Empty files take no bytes, but each takes an inode.
        ([0, 0, 0], [room(0, inodes=2)], [0, 0, NOWHERE]),
        ([7, 7, 7], [room(PLENTY, inodes=1), room(PLENTY, inodes=1)], [0, 1, NOWHERE]),
        # A file occupies whole blocks. The second file needs 8192 bytes, but only 4096 remain.
        ([1, 4097, 4096], [room(8192, block=4096)], [0, NOWHERE, 0]),
        ([100], [room(0), room(0, inodes=0), room(100)], [2]),
    ],
)
def test_known_answers(sizes: list[int], rooms: list[TierRoom], expected: list[int]) -> None:
    assert place(sizes, rooms) == expected


@pytest.mark.parametrize(
    ("size", "block", "expected"),
    [(0, 4096, 0), (1, 4096, 4096), (4096, 4096, 4096), (4097, 4096, 8192), (7, 1, 7)],
)
def test_sizes_are_rounded_up_to_blocks(size: int, block: int, expected: int) -> None:
    rounded = room(0, block=block).rounded(np.array([size], dtype=np.uint64))
    assert rounded.tolist() == [expected]


def test_a_size_near_the_largest_does_not_wrap_around() -> None:
    largest = (1 << 63) - 1
    assert place([largest], [room(PLENTY)]) == [NOWHERE]
    assert place([largest, 1], [room(PLENTY)]) == [NOWHERE, 0]


def test_a_million_files_that_all_fit_are_placed_without_a_loop_over_them() -> None:
    sizes = np.full(1_000_000, 100, dtype=np.uint64)
    assert (first_fit(sizes, [room(PLENTY)]) == 0).all()


sizes_of_files = st.lists(st.integers(0, 100_000), max_size=60)
some_tiers = st.lists(
    st.builds(
        TierRoom,
        free_bytes=st.integers(0, 500_000),
        free_inodes=st.integers(0, 40),
        block_bytes=st.sampled_from([1, 512, 4096, 65536]),
    ),
    max_size=4,
)


@given(sizes_of_files, some_tiers)
def test_no_tier_is_given_more_than_its_room(sizes: list[int], rooms: list[TierRoom]) -> None:
    chosen = np.array(place(sizes, rooms))
    for tier, limit in enumerate(rooms):
        mine = np.array(sizes, dtype=np.uint64)[chosen == tier]
        assert limit.rounded(mine).sum() <= limit.free_bytes
        assert len(mine) <= limit.free_inodes


@given(sizes_of_files, some_tiers)
def test_each_file_is_in_the_first_tier_that_had_room_when_its_turn_came(
    sizes: list[int], rooms: list[TierRoom]
) -> None:
    free = [[tier.free_bytes, tier.free_inodes] for tier in rooms]
    expected = []
    for size in sizes:
        answer = NOWHERE
        for number, tier in enumerate(rooms):
            need = -(-size // tier.block_bytes) * tier.block_bytes
            if need <= free[number][0] and free[number][1] > 0:
                free[number][0] -= need
                free[number][1] -= 1
                answer = number
                break
        expected.append(answer)
    assert place(sizes, rooms) == expected


@given(sizes_of_files, st.integers(100_001, 1 << 40), st.data(), some_tiers)
def test_a_file_that_fits_nowhere_changes_nothing_for_the_others(
    sizes: list[int], large: int, data: st.DataObject, rooms: list[TierRoom]
) -> None:
    limit = max((tier.free_bytes for tier in rooms), default=0)
    at = data.draw(st.integers(0, len(sizes)))
    with_it = place([*sizes[:at], limit + large, *sizes[at:]], rooms)
    assert with_it.pop(at) == NOWHERE
    assert with_it == place(sizes, rooms)


def test_a_file_goes_where_it_is_meant_to_and_else_where_there_is_room() -> None:
    rooms = [TierRoom(1000, 10, 1), TierRoom(300, 10, 1)]
    preferred = np.array([1, 1, 0, NOWHERE, 1, NOWHERE], dtype=np.int32)
    sizes = np.array([200, 200, 700, 150, 100, 400], dtype=np.uint64)
    chosen = first_fit(sizes, rooms, preferred)
    # File 1 does not fit into tier 1 beside file 0, so it goes to tier 0. Files 3 and 5 fit into no
    # tier.
    assert chosen.tolist() == [1, 0, 0, NOWHERE, 1, NOWHERE]
    assert first_fit(sizes[:0], rooms, preferred[:0]).tolist() == []
