"""The checksums recorded for a copy are those of its content, no matter in which order its units
were filled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.draws import cases
from support.epoch import content, make_files
from support.files import digest
from support.session import IN_UNITS, MIB, Session
from support.steps import Steps

from monarch_py.demo.slowsource import SlowSource

UNIT = 256 << 10
# A file has two blocks, the second of which ends in the middle of a unit.
SIZE = 7 * MIB + 100_001
PER_BLOCK, UNITS = 16, 29

ORDERS = {
    "forward": list(range(UNITS)),
    "backward": list(range(UNITS))[::-1],
    "first": [0],
    "second": [1],
    "middle": [7, 8],
    "end_of_a_block": [PER_BLOCK - 1],
    "end_of_the_file": [UNITS - 1],
    "both_ends": [UNITS - 1, PER_BLOCK - 1],
    "every_other": [*range(1, UNITS, 2), *range(0, UNITS, 2)],
}
READ = """
fd = os.open(sys.argv[1], 0)
parts = {unit: os.pread(fd, 1 << 18, unit << 18) for unit in json.loads(sys.argv[2])}
step({unit: sha(part) for unit, part in parts.items()})
"""


@pytest.fixture
def source(tmp_path: Path, slowsource_binary: Path) -> Iterator[SlowSource]:
    mountpoint, backing = tmp_path / "mount", tmp_path / "backing"
    mountpoint.mkdir()
    backing.mkdir()
    with SlowSource(backing, mountpoint, binary=slowsource_binary) as mounted:
        yield mounted


@pytest.mark.parametrize("threads", cases([1, 4], short=[4]))
def test_copies_made_in_any_order_have_their_own_checksums(
    session_factory: Callable[..., Session], source: SlowSource, threads: int
) -> None:
    """A copy has the right checksums, no matter which units a reader demands first. In
    `end_of_a_block`, the reader gets the last unit of the first block before the fill has read the
    rest of this block."""
    files = dict(zip(ORDERS, make_files(source.backing, len(ORDERS), SIZE), strict=True))
    session = session_factory(source.mountpoint, shared_tpool_size=threads, **IN_UNITS).start()
    session.wait_scanned()
    # Reads are slow, so that a reader's demand for a unit arrives before the fill has read all
    # earlier units.
    source.latency(read=0.001)
    for order, seed in files.items():
        with Steps(session, READ, source.mountpoint / str(seed), ORDERS[order]) as reader:
            (found,) = reader.wait()
            reader.go()
            reader.end()
        data = content(seed, SIZE)
        assert found == {str(u): digest(data[u * UNIT : (u + 1) * UNIT]) for u in ORDERS[order]}
        session.wait_idle()
    assert session.status()["sources"][0]["present"] == len(ORDERS)
    done = session.monarch("verify")
    damaged = [order for order, seed in files.items() if f"/mount/{seed}\n" in done.stdout]
    assert (done.returncode, damaged) == (0, []), done
