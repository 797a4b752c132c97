"""The manifest of a persistent tier is gone, or anything but a manifest: no harm to the job."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support.files import Files, check_all
from support.manifests import copies_in, manifest_of, wait_recorded
from support.session import MIB, Session
from support.watch import settle

COUNT = 40


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    made = Files(tmp_path_factory.mktemp("manifest") / "source")
    return made.add_many(COUNT, 10_000).wait_until_old()


@pytest.fixture
def session(session_factory: Callable[..., Session], tmp_path: Path, files: Files) -> Session:
    """Two tiers, of which the first keeps its copies; it has recorded them and is stopped."""
    tiers = []
    for name, persistent in (("first", True), ("second", False)):
        (tmp_path / name).mkdir()
        tiers.append(
            {
                "mount_point": tmp_path / name,
                "max_storage_quota": 16 * MIB,
                "persistent": persistent,
            }
        )
    made = session_factory(files.root, tiers=tiers, directory=tmp_path).start()
    assert settle(made) == {"present": COUNT}
    wait_recorded(made, COUNT)
    made.stop()
    return made


def lost(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(20_000))


def garbage_inside(path: Path) -> None:
    """The first page is sound, so that it opens; the rows are not."""
    data = bytearray(path.read_bytes())
    data[4096:] = random.Random(2).randbytes(len(data) - 4096)
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)


def other_tables(path: Path) -> None:
    change(path, "DROP TABLE copies", "CREATE TABLE copies (something TEXT)")


def nonsense_rows(path: Path) -> None:
    change(path, "UPDATE copies SET size = 'many', path_hash = x'00' WHERE copy % 2")


def newer_version(path: Path) -> None:
    change(path, "UPDATE meta SET value = '99' WHERE key = 'version'")


def wrong_sums(path: Path) -> None:
    """As after an unclean end: what the rows claim is not what lies there."""
    change(path, "UPDATE copies SET sum = sum + 1", "UPDATE meta SET value = 0 WHERE key = 'clean'")


DAMAGES = [
    lost,
    empty,
    garbage,
    garbage_inside,
    cut,
    a_directory,
    other_tables,
    nonsense_rows,
    newer_version,
    wrong_sums,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_the_daemon_starts_all_the_same(
    session: Session, files: Files, damage: Callable[[Path], None]
) -> None:
    damage(manifest_of(session))
    done = session.monarch("start")
    assert done.returncode == 0, done.stderr
    try:
        assert settle(session)["present"] == COUNT
        check_all(session, files)
        first = session.status()["tiers"][0]
        if not first["usable"]:
            assert "manifest" in first["why"]
            assert first["why"] in done.stderr
            assert damage not in (lost, empty, wrong_sums)
        else:
            wait_recorded(session, COUNT)
    finally:
        assert session.monarch("stop").returncode == 0
    log = session.paths.log.read_text() if session.paths.log.exists() else ""
    assert "Traceback" not in log


def test_a_newer_version_keeps_its_copies(session: Session, files: Files) -> None:
    """They are of use to the newer version, which may come back."""
    before = {path: path.read_bytes() for path in copies_in(session).values()}
    newer_version(manifest_of(session))
    session.start()
    settle(session)
    check_all(session, files)
    session.stop()
    assert {path: path.read_bytes() for path in before} == before
    with closing(sqlite3.connect(manifest_of(session))) as db:
        assert db.execute("SELECT value FROM meta WHERE key = 'version'").fetchone() == ("99",)


def test_a_damaged_manifest_on_the_only_tier_does_not_keep_the_daemon_from_starting(
    session_factory: Callable[..., Session], tmp_path: Path, files: Files
) -> None:
    mount = tmp_path / "only"
    mount.mkdir()
    tier = {"mount_point": mount, "max_storage_quota": 16 * MIB, "persistent": True}
    session = session_factory(files.root, tiers=[tier]).start()
    settle(session)
    wait_recorded(session, COUNT)
    session.stop()
    garbage(manifest_of(session))
    session.start()
    assert settle(session)["present"] == COUNT
    check_all(session, files)
    wait_recorded(session, COUNT)
