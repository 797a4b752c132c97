"""The staging area holds copies of files for which the tiers have no room. A copy in the area is
dropped when another file needs its room."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from daemon.old_files import OldFiles
from support.draws import sized
from support.files import Files, Loop, check_all, same_without
from support.session import MIB, Session, wait_until
from support.watch import QuotaWatch, assert_quiet

from monarch_py.daemon.copies.staging import Staging
from monarch_py.demo.slowsource import SlowSource
from monarch_py.ipc.session import Segment
from monarch_py.native import ffi
from monarch_py.policies.node import NodePolicy
from monarch_py.policies.placement import TierRoom

Factory = Callable[..., Session]
KIB = 1 << 10
MANY = sized(40, 60)


@pytest.fixture
def area(tmp_path: Path) -> Path:
    place = tmp_path / "staging"
    place.mkdir()
    return place


def small_tier(tmp_path: Path, quota: int = 256 * KIB, **more: object) -> list[dict[str, object]]:
    place = tmp_path / "small"
    place.mkdir(exist_ok=True)
    return [{"mount_point": place, "max_storage_quota": quota, **more}]


def staged(session: Session) -> int:
    return int(session.status()["staging"]["files"])


def opened(session: Session) -> list[int]:
    """Returns the opens that clients have reported but that the daemon has not taken yet. Clients
    do not report which entry of the catalog was opened, but only to which group of 64 entries it
    belongs. So the result contains the number of the first entry of each such group."""
    clients = Segment.open(session.paths.clients, writable=False)
    bits = ffi.buffer(ffi.addressof(clients.as_struct("struct monarch_clients"), "opened"))
    words = np.frombuffer(bits, dtype=np.uint64).copy()  # clients change the bits meanwhile
    return [64 * int(word) for word in np.flatnonzero(words)]


def read(session: Session, *paths: Path) -> None:
    """Reads the files completely, in this order, in one process."""
    script = "import sys; [open(name, 'rb', 0).read() for name in sys.argv[1:]]"
    assert session.run([sys.executable, "-I", "-S", "-c", script, *paths]).returncode == 0


def read_each(session: Session, paths: list[Path]) -> None:
    """Reads one file after the other. Waits after each file until the daemon has decided on it, and
    has noticed that it was opened."""
    for path in paths:
        read(session, path)
        session.wait_idle()
        wait_until(lambda: not opened(session), what="a look of the daemon at the opens")


def test_what_has_no_place_in_the_tiers_is_staged_and_goes_for_others(
    session_factory: Factory,
    slow_factory: Callable[..., SlowSource],
    tmp_path: Path,
    area: Path,
) -> None:
    slow = slow_factory(keep_pages=True)
    files = Files(slow.backing).add_many(MANY, 40_000)
    files.root = slow.mountpoint
    # If a file is opened before the daemon can make room for its copy, the file is left to the
    # source. So the source must be slow enough for the daemon to make room first.
    slow.latency(open=0.005, read=0.005)
    staging = {"mount_point": str(area), "max_storage_quota": 512 * KIB}
    session = session_factory(files.root, tiers=small_tier(tmp_path), staging=staging).start()
    with QuotaWatch(area) as watch, QuotaWatch(tmp_path / "small") as kept:
        for _ in range(sized(2, 3)):
            check_all(session, files)
            session.wait_idle()
    assert watch.most_bytes <= 512 * KIB
    assert kept.most_bytes <= 256 * KIB
    report = session.status()
    told, source = report["staging"], report["sources"][0]
    assert set(told) - set(report["tiers"][0]) == {"staged", "dropped", "read_ahead"}
    in_tier = report["tiers"][0]["files"]
    assert 0 < in_tier < 8
    assert 5 <= told["files"] <= 13
    assert told["staged"] - told["dropped"] == told["files"]
    assert told["staged"] > MANY, "files that were dropped must be staged again in each epoch"
    assert source["present"] == in_tier + told["files"]
    assert source["absent"] == MANY - source["present"], "dropped files must be absent"
    assert source["bypass"] == {}
    assert_quiet(session)


def test_the_one_that_was_opened_longest_ago_goes_first(
    session_factory: Factory, tmp_path: Path, area: Path
) -> None:
    files = Files(tmp_path / "source").add_many(8, 100_000)
    staging = {"mount_point": str(area), "max_storage_quota": 600 * KIB}
    tiers = small_tier(tmp_path, 128 * KIB)
    session = session_factory(files.root, tiers=tiers, staging=staging).start()
    session.wait_scanned()
    paths = sorted(files.root.iterdir())

    def all_have_copies() -> bool:
        read_each(session, paths[:6])
        return staged(session) == 5

    # One copy is in the tier, and five are staged. On a busy machine, a fill may be left out.
    wait_until(all_have_copies, what="the copies")
    read_each(session, paths[1:2])  # the program opens the copy without asking the daemon
    read_each(session, paths[6:7])
    hits = session.totals()["hits"]
    read(session, paths[1])
    assert session.totals()["hits"] == hits + 1, "the copy that was opened last was dropped"
    read(session, paths[2])
    assert session.totals()["hits"] == hits + 1, "the copy that was opened first was not dropped"


def test_room_is_made_for_whole_blocks() -> None:
    """The area has room for the bytes of the file, but not for the blocks that its copy takes. So
    other copies must be dropped."""
    size, free, block = 100_001, 100_500, 4096
    tier: Any = SimpleNamespace(
        room=lambda: TierRoom(free, 10, block), config=SimpleNamespace(quota_bytes=size)
    )
    copies: Any = SimpleNamespace(leaving=[0])

    class Area(Staging):
        dropped = 0

        def _drop(self, bytes_: int, least_use: int) -> None:
            self.dropped += bytes_

    staging = Area(0, tier, copies, NodePolicy())
    staging.make_room(np.array([size], dtype=np.uint64))
    assert staging.dropped >= 25 * block - free


def test_a_file_larger_than_the_area_is_left_to_the_source(
    session_factory: Factory, tmp_path: Path, area: Path
) -> None:
    files = Files(tmp_path / "source").add_many(4, 100_000)
    files.add("large", 2 * MIB)
    staging = {"mount_point": str(area), "max_storage_quota": MIB}
    session = session_factory(files.root, tiers=small_tier(tmp_path), staging=staging).start()
    for _ in range(2):
        check_all(session, files)
        session.wait_idle()
    source = session.status()["sources"][0]
    assert source["bypass"] == {"no_room": 1}
    assert source["present"] == 4
    assert_quiet(session)


def test_without_anything_to_drop_the_source_serves_this_time(
    session_factory: Factory, tmp_path: Path, area: Path, slow_factory: Callable[..., SlowSource]
) -> None:
    """The staging area has room for one of two files. While one file is being filled, its copy
    cannot be dropped to make room for the other, which is then left to the source. After the fill,
    the other file gets a copy too."""
    mounted = slow_factory()
    files = Files(mounted.backing).add_many(2, 700_000)
    one, other = sorted(path.name for path in files.root.iterdir())
    staging = {"mount_point": str(area), "max_storage_quota": MIB}
    session = session_factory(mounted.mountpoint, tiers=small_tier(tmp_path), staging=staging)
    session.start().wait_scanned()
    mounted.rate(500e3)
    script = "import os, sys; os.close(os.open(sys.argv[1], os.O_RDONLY))"
    session.python(script, mounted.mountpoint / one)
    wait_until(lambda: session.status()["sources"][0]["filling"], what="the fill")
    session.python(script, mounted.mountpoint / other)
    refused = {"no_room": 1}
    wait_until(lambda: session.status()["sources"][0]["bypass"] == refused, what="the refusal")
    mounted.rate(0)
    wait_until(lambda: staged(session) == 1, what="the first copy")
    wait_until(lambda: not session.status()["sources"][0]["bypass"], what="the end of the refusal")
    read(session, mounted.mountpoint / other)
    session.wait_idle()
    told = session.status()["staging"]
    assert (told["staged"], told["dropped"], told["files"]) == (2, 1, 1)
    check_all(session, files, mounted.mountpoint)


def test_a_reader_that_waits_for_room_has_every_byte_from_its_copy(
    session_factory: Factory, tmp_path: Path, area: Path, slow_factory: Callable[..., SlowSource]
) -> None:
    """A reader that finds the staging area full waits until there is room, and then reads from the
    copy. Here a fill begins when a program reads, not when it opens the file. If the fill began
    during the open, FUSE would throw away the pages that the fill has read, and read them again."""
    mounted = slow_factory()
    Files(mounted.backing).add_many(12, 300_000)
    staging = {"mount_point": str(area), "max_storage_quota": MIB}
    tiers = small_tier(tmp_path)
    session = session_factory(mounted.mountpoint, tiers=tiers, staging=staging, fill_after=0.0001)
    session.start().wait_scanned()
    mounted.reset()
    for _ in range(2):
        read_each(session, sorted(mounted.mountpoint.iterdir()))
    totals = session.totals()
    assert totals["fallbacks"] == 0
    assert totals["fills"] == 24
    assert totals["source_bytes_read_by_fills"] == 24 * 300_000
    assert mounted.counts()["bytes_read"] <= 1.05 * 24 * 300_000
    assert session.status()["staging"]["dropped"] >= 20


def test_a_copy_that_is_dropped_while_it_is_open_stays_what_it_was(
    session_factory: Factory, tmp_path: Path, area: Path
) -> None:
    files = Files(tmp_path / "source").add_many(12, 300_000)
    staging = {"mount_point": str(area), "max_storage_quota": MIB}
    session = session_factory(files.root, tiers=small_tier(tmp_path), staging=staging).start()
    session.wait_scanned()
    paths = sorted(files.root.iterdir())
    read_each(session, paths[:1])
    script = (
        "import hashlib, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "def told(st): return [*st[:7], st.st_mtime_ns, st.st_ctime_ns]\n"
        "before = told(os.fstat(fd))\n"
        "for name in sys.argv[2:]:\n"
        "    with open(name, 'rb', 0) as f: f.read()\n"
        "print(told(os.fstat(fd)) == before == told(os.stat(sys.argv[1])))\n"
        "print(hashlib.sha256(os.pread(fd, 1 << 20, 0)).hexdigest())\n"
    )

    def has_dropped_enough() -> bool:
        said = session.python(script, *paths).split()
        session.wait_idle()
        assert said == ["True", files.digests[paths[0].name]]
        return bool(session.status()["staging"]["dropped"] > 12)

    # On a busy machine, some files are left to the source, so more rounds are needed.
    wait_until(has_dropped_enough, what="drops")


STATX = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for name in sys.argv[1:]:
    fd = os.open(name, os.O_RDONLY)
    for mask in (0x1, 0x100, 0x200, 0xC0, 0x2C0, 0x7FF):
        found = ctypes.create_string_buffer(256)
        assert libc.statx(fd, b"", 0x1000, mask, found) == 0
        # Links, owner, group, mode, inode and size: they are filled whatever the mask says.
        print(os.path.basename(name), mask, found.raw[16:48].hex())
    print(os.fstat(fd)[:7], os.fstat(fd).st_mtime_ns)
"""


def test_attributes_of_what_is_staged(session_factory: Factory, tmp_path: Path, area: Path) -> None:
    """Whatever mask a program passes to statx for the descriptor of a staged copy, the program sees
    the attributes of the source's file. The library recognizes a staged copy by a stamp in the
    copy's mtime, which newer kernels report only if the mask asks for the mtime."""
    files = Files(tmp_path / "source").add_many(8, 100_000)
    staging = {"mount_point": str(area), "max_storage_quota": 2 * MIB}
    session = session_factory(files.root, tiers=small_tier(tmp_path), staging=staging).start()
    check_all(session, files)
    session.wait_idle()
    assert staged(session) > 4
    paths = sorted(files.root.iterdir())
    before = session.totals()["hits"]
    same_without(session, [sys.executable, "-I", "-S", "-c", STATX, *map(str, paths)])
    assert session.totals()["hits"] == before + len(paths)


def rows_of(tier: Path) -> int:
    (manifest,) = tier.rglob("manifest.sqlite")
    with closing(sqlite3.connect(manifest)) as rows:
        return int(rows.execute("SELECT count(*) FROM copies").fetchone()[0])


def test_no_manifest_knows_what_is_staged(
    session_factory: Factory, tmp_path: Path, area: Path, old_files: OldFiles
) -> None:
    files = old_files.flat.wait_until_old()
    staging = {"mount_point": str(area), "max_storage_quota": 2 * MIB}
    tiers = small_tier(tmp_path, persistent=True)
    session = session_factory(files.root, tiers=tiers, staging=staging).start()
    check_all(session, files)
    status = session.wait_idle()
    assert status["staging"]["files"] + status["tiers"][0]["files"] == 10
    kept = status["tiers"][0]["files"]
    assert not status["staging"]["persistent"]
    wait_until(
        lambda: rows_of(tmp_path / "small") == kept, what="the manifest's rows of all kept copies"
    )
    for end in (session.kill, session.stop):
        end()
        assert rows_of(tmp_path / "small") == kept
        session.start()
        assert not list(area.rglob("staging-*/c/*")), (
            "copies of the killed daemon are left in the area"
        )
        wait_until(lambda: session.status()["tiers"][0]["files"] == kept, what="the kept copies")
        assert session.status()["staging"]["files"] == 0
    session.stop()
    assert not list(area.iterdir()), "copies are left in the area after the stop"


def test_many_readers_of_what_comes_and_goes(
    session_factory: Factory, tmp_path: Path, area: Path
) -> None:
    files = Files(tmp_path / "source").add_many(40, 60_000)
    staging = {"mount_point": str(area), "max_storage_quota": 512 * KIB}
    session = session_factory(files.root, tiers=small_tier(tmp_path), staging=staging).start()
    with Loop(session, files, tmp_path) as one, Loop(session, files, tmp_path) as two:
        for each in (one, two):
            each.wait_passes(3)
        session.forget()
        for each in (one, two):
            each.wait_passes(2)
        session.kill()
        one.wait_passes(1)
        session.start()
        one.wait_passes(2)
        for each in (one, two):
            each.end()


def test_without_an_area_nothing_is_followed(session_factory: Factory, tree: Path) -> None:
    session = session_factory(tree).start()
    assert session.status()["staging"] is None
    session.wait_all_present()
    assert opened(session) == []


def test_warm_ends_although_not_everything_has_a_place(
    session_factory: Factory, tmp_path: Path, area: Path
) -> None:
    files = Files(tmp_path / "source").add_many(10, 100_000)
    staging = {"mount_point": str(area), "max_storage_quota": 512 * KIB}
    session = session_factory(files.root, tiers=small_tier(tmp_path), staging=staging).start()
    done = session.monarch("warm", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["filled_files"] == 2
    assert said["at_source"] == {"no_room": 8}
    check_all(session, files)
    assert session.wait_idle()["staging"]["files"] > 0


def test_who_has_a_staged_file_open_is_told(
    session_factory: Factory, tmp_path: Path, area: Path
) -> None:
    files = Files(tmp_path / "source").add_many(3, 200_000)
    staging = {"mount_point": str(area), "max_storage_quota": MIB}
    session = session_factory(files.root, tiers=small_tier(tmp_path), staging=staging).start()
    check_all(session, files)
    session.wait_idle()
    script = "import sys; f = open(sys.argv[1], 'rb'); print(flush=True); sys.stdin.read()"
    served = set()
    for path in sorted(files.root.iterdir()):
        holder = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", script, str(path)],
            env=session.env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert holder.stdout is not None
        holder.stdout.readline()
        rows = [row for row in session.connection.ask("open")["open"] if row["pid"] == holder.pid]
        holder.communicate()
        served |= {row["served_by"] for row in rows}
    assert served == {"tier 0", "staging"}
