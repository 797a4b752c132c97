"""Where NoPFS reads a file from, what it thinks is there, what it fetches first; and migration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policies.jobs import cluster

from monarch_py.policies.nopfs.fetching import (
    NONE,
    Places,
    Source,
    choose,
    fetch_seconds,
    is_ready,
    late,
)
from monarch_py.policies.nopfs.migration import migrate
from monarch_py.policies.replay import NEVER

MB = 10**6
PFS_RATES = {1.0: 60e6, 2.0: 90e6, 4.0: 100e6}
# RAM: 400 MB/s by 4 threads. SSD: 100 MB/s by 2. Links of 80 MB/s.
MACHINE = cluster(
    [[1, 1], [1, 1]],
    threads=[1, 4, 2],
    read_rate=[400e6, 400e6, 100e6],
    network=80e6,
    pfs=PFS_RATES.__getitem__,
)
RAM, SSD = 1, 2
# local class, class on node 1 -> of a dozen files of 1 to 12 MB
PLACES = [
    (RAM, NONE),
    (SSD, NONE),
    (NONE, RAM),
    (NONE, SSD),
    (NONE, NONE),
    (SSD, RAM),
    (RAM, RAM),
    (RAM, SSD),
    (SSD, SSD),
    (NONE, RAM),
    (SSD, NONE),
    (NONE, NONE),
]
SIZES = np.arange(1, 13) * MB
L, R, P = Source.LOCAL, Source.REMOTE, Source.PFS


def places() -> Places:
    local, remote = np.array(PLACES).T
    return Places(local, np.where(remote == NONE, NONE, 1), remote)


@pytest.mark.parametrize(
    ("clients", "expected"),
    [
        # A thread gets 100 from its RAM, 50 from its SSD, 80 from RAM over the link, 50 from SSD
        # over it; from the file system 60, 45 and 25 MB/s as 1, 2 and 4 read it.
        (1, [L, P, R, P, P, R, L, L, P, R, P, P]),
        (2, [L, L, R, R, P, R, L, L, L, R, L, P]),
        (4, [L, L, R, R, P, R, L, L, L, R, L, P]),
    ],
)
def test_the_fastest_source(clients: int, expected: list[Source]) -> None:
    assert choose(MACHINE, 0, SIZES, places(), clients).tolist() == expected


def test_seconds_of_each_source() -> None:
    """3 MB from RAM over the link of 80 MB/s: 37.5 ms; from the file system with one other:
    66.7."""
    seconds = fetch_seconds(MACHINE, 0, SIZES, places(), 2)
    assert seconds[2, R] == pytest.approx(0.0375)
    assert seconds[2, P] == pytest.approx(3 / 45)
    assert seconds[0, L] == pytest.approx(0.01)
    assert np.isinf(seconds[2, L])
    assert np.isinf(seconds[0, R])


def test_an_empty_file_is_read_where_it_is() -> None:
    nothing = np.zeros(12, dtype=np.int64)
    chosen = choose(MACHINE, 0, nothing, places(), 1)
    for (local, remote), source in zip(PLACES, chosen, strict=True):
        assert source == (L if local != NONE else R if remote != NONE else P)


def test_what_lies_before_our_own_place_is_there() -> None:
    """Our prefetchers are at access 5: what its holder uses at 0 to 4 is there by now."""
    assert is_ready(np.array([0, 4, 5, 11, NEVER]), 5).tolist() == [True, True, False, False, False]


def test_late_files_come_first() -> None:
    """The class is filled 3 1 0 4 2, used at 0 1 2 5 9. Training is at 2 and has 1: 3 and 0 are
    late, and 3 was needed first. A file that is never used here is never late."""
    first = np.array([2, 1, 9, 0, 5, NEVER])
    present = np.array([False, True, False, False, False, False])
    assert late(np.array([3, 1, 0, 4, 2, 5]), first, present, 2).tolist() == [3, 0]


def test_migration_by_hand() -> None:
    """4 files twice in the same order, fast room for 2, moved one access ahead. 0 and 1 come up;
    for 2 goes 1, used again at 5 (0 is at 4); for 3 goes 2, at 6. Then 0 and 1 are used for the
    last time, 0 from where it is; the room that they leave takes 1 and 2."""
    order = np.array([0, 1, 2, 3, 0, 1, 2, 3])
    upcoming = np.array([4, 5, 6, 7, *[NEVER] * 4])
    moves = migrate(order, upcoming, np.ones(4, dtype=np.int64), room=2, ahead=1)
    rows = zip(moves.before.tolist(), moves.file.tolist(), moves.up.tolist(), strict=True)
    assert list(rows) == [
        (0, 0, True),
        (1, 1, True),
        (2, 1, False),
        (2, 2, True),
        (3, 2, False),
        (3, 3, True),
        (5, 1, True),
        (6, 2, True),
    ]
    assert moves.fast.all()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 11), min_size=1, max_size=60),
    st.integers(0, 12),
    st.integers(1, 6),
)
def test_moves_never_exceed_the_room(order: list[int], room: int, ahead: int) -> None:
    """Replayed: what is up at an access is what the moves say, and it fits."""
    after = [
        next((j for j in range(i + 1, len(order)) if order[j] == order[i]), NEVER)
        for i in range(len(order))
    ]
    sizes = np.arange(12) % 3 + 1
    moves = migrate(np.array(order), np.array(after), sizes, room, ahead)
    rows = zip(moves.before.tolist(), moves.file.tolist(), moves.up.tolist(), strict=True)
    waiting, up = list(rows), set[int]()
    for at, file in enumerate(order):
        while waiting and waiting[0][0] <= at:
            _, moved, is_up = waiting.pop(0)
            (up.add if is_up else up.remove)(moved)
        assert sum(int(sizes[each]) for each in up) <= room
        assert moves.fast[at] == (file in up)
        if after[at] == NEVER:
            up.discard(file)
    assert not waiting
