"""A file has more units than a fill's map has bits. While the copy is incomplete, all reads of the
file must be right."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from support.mounts import Mounts
from support.session import Session, wait_until

from monarch_py.native import lib

Factory = Callable[..., Session]
BLOCK = 64 << 10
UNITS = 65536
# Reads marks in a sparse file by pread and by read. A fill's map has bits for only a part of this
# file. Some of the marks lie beyond this part.
PROGRAM = """
import os, sys
path, *places = sys.argv[1:]
fd = os.open(path, os.O_RDONLY)
for place in map(int, places):
    expected = b"mark %d" % place
    assert os.pread(fd, len(expected), place) == expected, place
    os.lseek(fd, place, os.SEEK_SET)
    assert os.read(fd, len(expected)) == expected, place
"""


def test_reads_beyond_the_map(session_factory: Factory, mounts: Mounts, tmp_path: Path) -> None:
    assert lib.MONARCH_FILL_UNITS == UNITS
    source = tmp_path / "source"
    source.mkdir()
    size = (UNITS + 100) * BLOCK
    places = [0, 5 * BLOCK, UNITS * BLOCK - 100, UNITS * BLOCK, (UNITS + 50) * BLOCK, size - 20]
    with (source / "large").open("wb") as file:
        file.truncate(size)
        for place in places:
            file.seek(place)
            file.write(b"mark %d" % place)
    # The copy needs 4 GiB of room, which the disk of the tests may not have. So the tier is a file
    # system in a sparse image.
    disk = mounts.xfs("tier", 2 * size)
    tier = {"mount_point": str(disk), "max_storage_quota": size + (1 << 20)}
    # The fill takes an hour, so all reads of the test happen in the middle of it.
    limits = {"bandwidth": 1 << 20}
    session = session_factory(source, tiers=[tier], block_size=BLOCK, source_limits=limits).start()
    session.wait_scanned()
    words = [sys.executable, "-c", PROGRAM, str(source / "large"), *map(str, places)]

    def read() -> None:
        done = session.run(words)
        assert (done.returncode, done.stderr) == (0, "")

    read()
    wait_until(lambda: session.status()["sources"][0]["filling"], what="the fill")
    read()
    told = session.status()["sources"][0]
    assert (told["filling"], told["present"]) == (1, 0)
    assert session.daemon is not None
    assert session.daemon.poll() is None
