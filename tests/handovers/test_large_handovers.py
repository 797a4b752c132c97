"""Handovers of larger files. While programs read these files, the daemon may also fill them in
parts."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from handovers.ground import (
    LARGE,
    MANY,
    READY,
    SIZE,
    UNMET,
    Directory,
    Factory,
    add_large,
    entry_of,
    popen,
    present,
    read,
    reading,
    started,
)
from support.draws import sized
from support.epoch import content
from support.files import digest
from support.session import Session, wait_until

from monarch_py.demo.slowsource import SlowSource

# In total, the program reads more than an eighth but less than half of the file.
AT_RANDOM = """
import os, sys
fd = os.open(sys.argv[1], 0)
for at in range(0, 3_000_000, 60_000):
    assert len(os.pread(fd, 10_000, 3_000_000 - 60_000 - at)) == 10_000
"""


@pytest.mark.parametrize("is_met", [True, False])
def test_larger_files_are_opened_once_too(
    session_factory: Factory, own_source: SlowSource, is_met: bool
) -> None:
    names = [str(seed) for seed in range(101, 105)]
    for name in names:
        add_large(own_source, name)
    rate = {} if is_met else {"scan_rate": UNMET}
    with session_factory(own_source.mountpoint, prefetch="on_demand", **rate).start() as session:
        if is_met:
            session.wait_scanned()
        own_source.reset()
        paths = [own_source.mountpoint / name for name in names]
        for _ in range(2):
            said = session.python(reading("parts"), *paths).split()
            assert said == [digest(content(int(name), LARGE)) for name in names]
            wait_until(lambda: present(session) >= len(names), what="copies of all files")
        # The daemon grants the engine room only when a program uses files. So the engine may be
        # unable to take the first file's descriptor, and the daemon may open that file itself.
        assert own_source.counts()["open"] <= len(names) + 1
        assert own_source.counts()["bytes_read"] <= (len(names) + 1) * LARGE


def test_a_file_that_is_read_at_random_is_filled_in_parts(
    session: Session, source: Directory
) -> None:
    """If a program reads a file at random, the daemon fills the file while the program still has it
    open. The daemon must not wait until the file has been read or closed: the program may never
    read all of the file, and may keep the file open until it ends."""
    add_large(source, "101")
    entry_of(session, source, "101")
    with started(session, AT_RANDOM, source.mountpoint / "101"):
        wait_until(lambda: present(session) == 2, what="the copy, while the file is open")


def test_a_large_file_is_its_readers_for_as_long_as_it_reads(
    session: Session, source: Directory
) -> None:
    """While a program reads a file, it claims the file, so that the daemon does not read the file
    too. A claim ends after a second, but a slow reader renews its claim as long as it reads."""
    add_large(source, "101")
    entry = entry_of(session, source, "101")
    script = "import os, sys, time\nfd = os.open(sys.argv[1], 0)\nos.read(fd, 100_000)"
    rest = "\nwhile os.read(fd, 300_000): time.sleep(0.15)"
    source.reset()
    with started(session, script, source.mountpoint / "101", rest):
        session.connection.ask("warm", entries=[entry], ticket="test")
    wait_until(lambda: present(session) == 2, what="the copy")
    assert source.counts()["open"] == 1
    assert source.counts()["bytes_read"] <= 1.1 * LARGE


HALF = "import os, sys\nfd = os.open(sys.argv[1], 0)\nassert len(os.read(fd, 1 << 20)) == 1 << 20"
REST = """
def rest():
    while part := os.read(fd, 1 << 20):
        yield part
"""
SAY = "\nimport hashlib; print(hashlib.sha256(b''.join(rest())).hexdigest())"


def rest_of(seed: int) -> str:
    return digest(content(seed, LARGE)[1 << 20 :])


def test_two_processes_read_one_new_file_at_once(session: Session, source: Directory) -> None:
    add_large(source, "101")
    entry_of(session, source, "101")
    source.reset()
    path = source.mountpoint / "101"
    with started(session, HALF, path, REST + SAY), started(session, HALF, path, REST + SAY):
        pass
    wait_until(lambda: present(session) == 2, what="the copy")
    assert source.counts()["open"] == 2
    assert source.counts()["bytes_read"] <= 1.02 * LARGE
    said = session.python(reading("parts"), path).split()
    assert said == [digest(content(101, LARGE))]


def test_a_reader_that_ends_or_stands_still_keeps_nobody(
    session: Session, source: Directory
) -> None:
    """A program claims a file while it reads the file. If the program is killed or suspended, the
    claim expires. Then the daemon fills the file, and another program can read it."""
    numbers = {"101": signal.SIGKILL, "102": signal.SIGSTOP}
    paths = [source.mountpoint / name for name in numbers]
    for name in numbers:
        add_large(source, name)
    entries = [entry_of(session, source, name) for name in numbers]
    with ExitStack() as stack:
        for path, number in zip(paths, numbers.values(), strict=True):
            program = stack.enter_context(popen(session, HALF + READY, path))
            stack.callback(program.kill)
            assert program.stdout is not None
            assert program.stdout.readline() == b"ready\n"
            program.send_signal(number)
        session.connection.ask("warm", entries=entries, ticket="test")
        wait_until(lambda: present(session) == 3, what="the copies")
    said = session.python(reading("parts"), *paths).split()
    assert said == [digest(content(int(name), LARGE)) for name in numbers]


@pytest.mark.parametrize("way", ["fork", "exec"])
def test_another_program_reads_on(session: Session, source: Directory, way: str) -> None:
    add_large(source, "101")
    entry_of(session, source, "101")
    on = {
        "fork": "\nif os.fork(): os.wait(); sys.exit()",
        "exec": "\nos.set_inheritable(fd, True)\n"
        "os.execv(sys.executable, [sys.executable, '-c', 'import os; fd = %d' % fd + sys.argv[2]])",
    }
    path, after = source.mountpoint / "101", REST + SAY
    assert session.python(HALF + on[way] + after, path, after).split() == [rest_of(101)]
    said = session.python(reading("parts"), path).split()
    assert said == [digest(content(101, LARGE))]
    wait_until(lambda: present(session) == 2, what="the copy")


def test_a_reader_that_begins_in_the_middle(session: Session, source: Directory) -> None:
    add_large(source, "101")
    entry_of(session, source, "101")
    script = (
        "import hashlib, os, sys\nfd = os.open(sys.argv[1], 0)\nos.lseek(fd, 1_000_000, 0)\n"
        "data = b''.join(iter(lambda: os.read(fd, 100_000), b''))\nos.lseek(fd, 0, 0)\n"
        "data = os.read(fd, 1_000_000) + data\nprint(hashlib.sha256(data).hexdigest())"
    )
    assert session.python(script, source.mountpoint / "101").split() == [
        digest(content(101, LARGE))
    ]
    wait_until(lambda: present(session) == 2, what="the copy")


def test_a_file_for_which_no_tier_has_room(
    session_factory: Factory, own_source: SlowSource, tmp_path: Path
) -> None:
    add_large(own_source, "101")
    tier = tmp_path / "small"
    tier.mkdir()
    tiers = [{"mount_point": tier, "max_storage_quota": 2_000_000}]
    with session_factory(
        own_source.mountpoint, prefetch="on_demand", tiers=tiers
    ).start() as session:
        session.wait_scanned()
        path = own_source.mountpoint / "101"
        for _ in range(2):
            said = session.python(reading("parts"), path).split()
            assert said == [digest(content(101, LARGE))]
        read(session, own_source, "parts", 1)
        wait_until(lambda: present(session) == 1, what="the copy of the small file")
        wait_until(
            lambda: session.status()["sources"][0]["bypass"] == {"no_room": 1}, what="the reason"
        )


def test_headers_of_files_that_no_scan_has_met_cost_what_they_are(
    session_factory: Factory, own_source: SlowSource
) -> None:
    names = [str(seed) for seed in range(101, sized(103, 109))]
    for name in names:
        add_large(own_source, name)
    # The scan takes half a second per file, and the test waits for the scan. So the test removes
    # all but a few files.
    for seed in range(2, MANY + 1):
        (own_source.backing / str(seed)).unlink()
    script = "import os, sys\nfor p in sys.argv[1:]:\n fd = os.open(p, 0); os.read(fd, 4096)"
    with session_factory(own_source.mountpoint, scan_rate=2).start() as session:
        own_source.reset()
        session.python(script + "; os.close(fd)", *(own_source.mountpoint / name for name in names))
        session.python(reading("read"), own_source.mountpoint / "1")
        wait_until(lambda: present(session) == 1, what="the copy of what was read")
        session.wait_idle()
        assert present(session) == 1
        assert own_source.counts()["open"] == len(names) + 1
        assert own_source.counts()["bytes_read"] <= len(names) * (256 << 10) + SIZE
