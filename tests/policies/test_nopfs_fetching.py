"""NoPFS's estimates of how long [s] it takes to fetch a file from each place that has it."""

from __future__ import annotations

import numpy as np
import pytest
from policies.jobs import cluster
from simulator.model import NONE, Places, Source, fetch_seconds

MB = 10**6
PFS_RATES = {1.0: 60e6, 2.0: 90e6, 4.0: 100e6}
# The four threads of RAM together read 400 MB/s, and the two threads of the SSD together read 100
# MB/s. Links transfer 80 MB/s.
MACHINE = cluster(
    [[1, 1], [1, 1]],
    threads=[1, 4, 2],
    read_rate=[400e6, 400e6, 100e6],
    network=80e6,
    pfs=PFS_RATES.__getitem__,
)
RAM, SSD = 1, 2
# For each of twelve files of 1 to 12 MB: its storage class on node 0, and that on node 1.
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
        # The rates of one thread: 100 MB/s from local RAM, 50 MB/s from the local SSD, 80 MB/s from
        # remote RAM (the link's rate), and 50 MB/s from a remote SSD. The file system gives a
        # thread 60, 45 and 25 MB/s if there are 1, 2 and 4 clients.
        (1, [L, P, R, P, P, R, L, L, P, R, P, P]),
        (2, [L, L, R, R, P, R, L, L, L, R, L, P]),
        (4, [L, L, R, R, P, R, L, L, L, R, L, P]),
    ],
)
def test_the_fastest_source(clients: int, expected: list[Source]) -> None:
    seconds = fetch_seconds(MACHINE, 0, SIZES, places(), clients)
    assert seconds.argmin(axis=1).tolist() == expected


def test_seconds_of_each_source() -> None:
    """A file of 3 MB takes 37.5 ms from remote RAM over a link of 80 MB/s.

    From the file system with two clients it takes 66.7 ms."""
    seconds = fetch_seconds(MACHINE, 0, SIZES, places(), 2)
    assert seconds[2, R] == pytest.approx(0.0375)
    assert seconds[2, P] == pytest.approx(3 / 45)
    assert seconds[0, L] == pytest.approx(0.01)
    assert np.isinf(seconds[2, L])
    assert np.isinf(seconds[0, R])


def test_an_empty_file_is_read_where_it_is() -> None:
    nothing = np.zeros(12, dtype=np.int64)
    chosen = fetch_seconds(MACHINE, 0, nothing, places(), 1).argmin(axis=1)
    for (local, remote), source in zip(PLACES, chosen, strict=True):
        assert source == (L if local != NONE else R if remote != NONE else P)
