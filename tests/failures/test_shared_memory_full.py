"""Tests of shared memory that is too small or becomes full. In a container, /dev/shm often has only
64 MiB."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.draws import sized
from support.files import Files, Loop, check_all, du_bytes, random_bytes
from support.mounts import Mounts
from support.segments import newest_generation
from support.session import MIB, Session, wait_until

from monarch_py.ipc.catalog import CatalogReader
from monarch_py.ipc.session import least_shm_bytes
from monarch_py.native import ffi

SMALL = 4 * MIB
FOLDERS = sized(40, 100)  # number of folders, each with a thousand files
SEGMENTS = ("struct monarch_clients", "struct monarch_fills", "struct monarch_control")
# Room [bytes] for SEGMENTS and for a catalog of a few thousand files.
ENOUGH_FOR_A_FEW = sum(map(ffi.sizeof, SEGMENTS)) + 7 * MIB // 4


def take_the_rest(shm: Path) -> Path:
    ballast = shm / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    return ballast


def assert_one_sentence(stderr: str, shm: Path) -> None:
    assert stderr.startswith("monarch: ")
    assert stderr.count("\n") == 1
    assert (
        f"shared memory is full: a daemon needs {least_shm_bytes() // MIB} MiB of {shm};" in stderr
    )
    assert "or set MONARCH_SHM" in stderr


@pytest.mark.parametrize("full", [False, True], ids=["too_small", "full"])
def test_the_daemon_refuses_with_one_sentence_and_the_job_goes_on(
    session_factory: Callable[..., Session], tmp_path: Path, mounts: Mounts, full: bool
) -> None:
    files = Files(tmp_path / "source").add_many(5, 1000)
    shm = mounts.tmpfs("shm", SMALL)
    session = session_factory(files.root, directory=shm.parent)
    if full:
        take_the_rest(shm)
    serve = session.monarch("serve")
    assert serve.returncode == 3
    assert_one_sentence(serve.stderr, shm)
    start = session.monarch("start")
    assert start.returncode == 3
    # The daemon's log may have no room for the message, but `start` prints it.
    assert_one_sentence(start.stderr, shm)
    done = session.monarch("run", "-q", "--", "sha256sum", str(files.path("f00000")))
    assert done.returncode == 0
    assert_one_sentence(done.stderr, shm)
    assert done.stdout.startswith(files.digests["f00000"])
    if not full:
        assert du_bytes(shm) < MIB  # the daemons have removed the segments that they had begun
    assert not (session.tiers[0] / "monarch-0" / "c").exists() or not list(
        (session.tiers[0] / "monarch-0" / "c").iterdir()
    )


@pytest.fixture
def many(mounts: Mounts) -> Files:
    """Makes far more files than fit into the catalog. The tests read only the 30 files of each
    folder that are recorded in the returned `Files`."""
    files = Files(mounts.tmpfs("source", 512 * MIB))
    for i in range(FOLDERS):
        folder = files.root / f"d{i:03d}"
        folder.mkdir()
        for j in range(1000):
            os.close(os.open(folder / f"f{j:04d}", os.O_WRONLY | os.O_CREAT, 0o644))
        for j in range(30):
            files.add(f"d{i:03d}/f{j * 33:04d}", 100 + j)
    return files


def test_files_beyond_a_full_catalog_are_left_to_the_source(
    session_factory: Callable[..., Session], tmp_path: Path, mounts: Mounts, many: Files
) -> None:
    shm = mounts.tmpfs("shm", ENOUGH_FOR_A_FEW)
    session = session_factory(many.root, directory=shm.parent).start()
    with Loop(session, many, tmp_path) as loop:
        wait_until(lambda: session.status()["catalog_full"], what="a full catalog", timeout=60)
        loop.wait_passes(2)
        take_the_rest(shm)
        loop.wait_passes(2)
        # The source is in memory, and therefore fast. While programs use all processors, background
        # fills from a fast source run for only a tenth of the time. So it may take a while until
        # the first copy is complete.
        wait_until(lambda: session.totals()["hits"] > 0, what="copies that serve", timeout=60)
        status = session.status()
        assert 1000 < status["catalog_entries"] < 1000 * FOLDERS
        loop.end()
    said = f"the catalog holds {status['catalog_entries']:,} names, and the source serves all other"
    assert said in session.monarch("status").stdout
    done = session.monarch("run", "--", "true")
    assert said in done.stderr


def test_a_tier_beside_the_catalog_leaves_it_room_to_grow(
    session_factory: Callable[..., Session], mounts: Mounts
) -> None:
    """A tier in the same file system as the catalog leaves room for the catalog to grow. Otherwise
    the copies made during the scan would take all the room before the scan has ended."""
    source, shm = mounts.tmpfs("source", 256 * MIB), mounts.tmpfs("shm", 26 * MIB)
    for name in (f"{i:05d}" for i in range(30_000)):
        with (source / name).open("wb", buffering=0) as file:
            file.write(b"1")
    (shm / "tier").mkdir()
    level = {"mount_point": shm / "tier", "max_storage_quota": 20 * MIB}
    session = session_factory(
        source, tiers=[level], directory=shm.parent, prefetch="eager", scan_rate=8000
    ).start()
    session.wait_scanned()
    status = session.status()
    assert (status["catalog_full"], status["catalog_entries"] > 30_000) == (False, True)
    # The catalog is shrunk, and then copies may use the room that was kept free for it.
    wait_until(lambda: session.status()["tiers"][0]["free_bytes"] < MIB, what="a full tier")
    catalog = CatalogReader.open(session.paths, newest_generation(session))
    assert catalog.c.capacity < 1.1 * len(catalog)


def test_copies_come_and_go_when_the_catalog_cannot_grow(
    session_factory: Callable[..., Session], tmp_path: Path, mounts: Mounts
) -> None:
    """The daemon keeps working if copies are made and dropped while the catalog cannot grow. Each
    new copy takes a place in an index of the catalog. Places become free only when a larger catalog
    replaces this one."""
    files = Files(tmp_path / "source").add_many(sized(600, 3500), 10)
    shm = mounts.tmpfs("shm", ENOUGH_FOR_A_FEW)
    session = session_factory(files.root, directory=shm.parent).start()
    wait_until(lambda: newest_generation(session) > 1, what="the catalog is shrunk")
    take_the_rest(shm)
    for _ in range(4):
        session.want_all()

        def settled() -> bool:
            source = session.status()["sources"][0]
            return bool(source["wanted"] + source["filling"] == 0)

        wait_until(settled, timeout=90, what="the end of all fills")
        session.forget()
    session.want_all()
    assert "copies cannot be published" in session.log.read_text()
    assert session.daemon is not None
    assert session.daemon.poll() is None
    (shm / "ballast").unlink()
    check_all(session, files)


def test_a_client_on_a_full_shm_is_not_disturbed(
    session_factory: Callable[..., Session], tmp_path: Path, mounts: Mounts
) -> None:
    """Clients can write to every page of their segment even if shared memory is full, because the
    daemon has allocated all pages. A write to a page that was not allocated would kill the client.
    """
    files = Files(tmp_path / "source").add_many(200, 3000)
    shm = mounts.tmpfs("shm", ENOUGH_FOR_A_FEW)
    session = session_factory(files.root, directory=shm.parent).start()
    session.wait_scanned()
    take_the_rest(shm)
    # The client writes to all parts of its segment: wanted files, unknown paths, and changes in
    # many places of the filter.
    session.python(
        "import os, sys\n"
        "for i in range(400):\n"
        "    path = f'{sys.argv[1]}/new{i}'\n"
        "    open(path, 'wb').write(b'n' * i)\n"
        "    assert open(path, 'rb').read() == b'n' * i\n",
        files.root,
    )
    for i in range(400):
        (files.root / f"new{i}").unlink()
    check_all(session, files)
    session.wait_all_present()
    check_all(session, files)
    assert random_bytes(3000, ("f00000", 0)) == files.path("f00000").read_bytes()
