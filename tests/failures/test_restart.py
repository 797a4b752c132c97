"""The copies of a persistent tier are served at once in the next session, but a wrong copy is never
served."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.draws import sized
from support.files import Files, check_all, du_bytes, random_bytes
from support.manifests import copies_in, manifest_of, wait_recorded
from support.session import MIB, Session, wait_until
from support.watch import settle

from monarch_py.demo.slowsource import SlowSource
from monarch_py.storage.tiers import tier_root

COUNT = 24


@pytest.fixture(scope="module")
def sources(
    tmp_path_factory: pytest.TempPathFactory, slowsource_binary: Path
) -> Iterator[tuple[SlowSource, list[Files]]]:
    """Yields a slow source that counts operations, and trees of old files behind it. No test
    changes the first tree. Each test that changes files has one of the other trees."""
    place = tmp_path_factory.mktemp("restart")
    backing, mountpoint = place / "backing", place / "mount"
    mountpoint.mkdir()
    trees = [Files(backing / f"tree{i}").add_many(COUNT, 30_000) for i in range(3)]
    trees[-1].wait_until_old()
    # Without cached attributes, a change behind the mount is visible at once.
    with SlowSource(backing, mountpoint, binary=slowsource_binary, attr_timeout=0) as mounted:
        yield mounted, trees


@pytest.fixture
def source(sources: tuple[SlowSource, list[Files]]) -> SlowSource:
    return sources[0]


def seen_by_programs(source: SlowSource, behind: Files) -> Files:
    """Returns the files of `behind`, with the paths that programs see in the slow source."""
    seen = Files(source.mountpoint / behind.root.name)
    seen.digests = dict(behind.digests)
    return seen


@pytest.fixture
def files(sources: tuple[SlowSource, list[Files]]) -> Files:
    """Returns a tree of old files, which the test must not change."""
    return seen_by_programs(sources[0], sources[1][0])


@pytest.fixture(scope="module")
def recorded(
    tmp_path_factory: pytest.TempPathFactory, sources: tuple[SlowSource, list[Files]]
) -> Iterator[Path]:
    """Yields a tier that has recorded copies of all files in `files`, and that no daemon uses."""
    place = tmp_path_factory.mktemp("recorded")
    (place / "tier").mkdir()
    tier = {"mount_point": place / "tier", "max_storage_quota": 32 * MIB, "persistent": True}
    root = seen_by_programs(sources[0], sources[1][0]).root
    with Session(place, root, tiers=[tier]) as made:
        made.start()
        assert settle(made) == {"present": COUNT}
        wait_recorded(made, COUNT)
        made.stop()
        yield place / "tier"


@pytest.fixture
def stopped(
    session_factory: Callable[..., Session], tmp_path: Path, files: Files, recorded: Path
) -> Session:
    """Returns a session that has recorded copies of all files and has ended in order. Its tier is a
    duplicate of `recorded`. The manifest is valid in the duplicate too, because it refers to copies
    by their names."""
    shutil.copytree(recorded, tmp_path / "tier")
    return make(session_factory, tmp_path, files)


@pytest.fixture
def session(stopped: Session) -> Session:
    """Returns a session that has recorded copies of all files, and whose daemon runs."""
    restart(stopped)
    assert stopped.status()["sources"][0]["present"] == COUNT
    return stopped


def make(
    session_factory: Callable[..., Session],
    tmp_path: Path,
    files: Files,
    quota_bytes: int = 32 * MIB,
    **settings: object,
) -> Session:
    mount = tmp_path / "tier"
    mount.mkdir(exist_ok=True)
    tier = {"mount_point": mount, "max_storage_quota": quota_bytes, "persistent": True}
    return session_factory(files.root, tiers=[tier], directory=tmp_path, **settings)


def restart(session: Session) -> None:
    session.start().wait_scanned()

    def checked() -> bool:
        status = session.status()
        return not (status["pending"] or status["sources"][0]["filling"])

    wait_until(checked, what="the end of all checks")


def stop_or_kill(session: Session, how: str) -> None:
    session.kill() if how == "killed" else session.stop()


however_it_ended = pytest.mark.parametrize("how", ["stopped", "killed"])


@however_it_ended
def test_copies_are_served_again_without_reading_the_source(
    session_factory: Callable[..., Session],
    tmp_path: Path,
    files: Files,
    source: SlowSource,
    how: str,
) -> None:
    session = make(session_factory, tmp_path, files).start()
    assert settle(session) == {"present": COUNT}
    before = {path.name for path in wait_recorded(session, COUNT).values()}
    stop_or_kill(session, how)
    source.reset()
    restart(session)
    assert session.status()["sources"][0]["present"] == COUNT
    session.python(READ, *map(files.path, files.digests))
    counts = source.counts()
    assert (counts["open"], counts["read"]) == (0, 0)
    assert session.totals()["hits"] == COUNT
    assert {path.name for path in copies_in(session).values()} == before
    check_all(session, files)


READ = "import sys\nfor path in sys.argv[1:]: open(path, 'rb').read()"


@however_it_ended
def test_an_older_copy_of_the_same_file_does_not_hide_the_newer(
    session: Session, files: Files, how: str
) -> None:
    """If the manifest has an older and a newer copy of a file, the newer copy is served and the
    older one is removed. The manifest may have both if a daemon copied a changed file, and ended
    before it removed the old copy."""
    stop_or_kill(session, how)
    path, newer = next(iter(copies_in(session).items()))
    older = newer.with_name(f"{1:013x}")
    older.write_bytes(b"what it was")
    shutil.copymode(newer, older)
    with closing(sqlite3.connect(manifest_of(session))) as db, db:
        row = list(db.execute("SELECT * FROM copies WHERE path = ?", (path.encode(),)).fetchone())
        names = [each[1] for each in db.execute("PRAGMA table_info(copies)")]
        row[names.index("copy")] = 1
        row[names.index("size")] = len(b"what it was")
        db.execute(f"INSERT INTO copies VALUES ({', '.join('?' * len(row))})", row)
    restart(session)
    assert session.totals()["fills"] == 0
    assert session.status()["sources"][0]["present"] == COUNT
    wait_until(lambda: not older.exists(), what="the removal of the older copy")
    assert wait_recorded(session, COUNT)[path] == newer
    check_all(session, files)


@however_it_ended
def test_files_that_changed_meanwhile_are_not_served_from_their_copies(
    session_factory: Callable[..., Session],
    tmp_path: Path,
    sources: tuple[SlowSource, list[Files]],
    how: str,
) -> None:
    source, behind = sources[0], sources[1].pop()
    files = seen_by_programs(source, behind)
    session = make(session_factory, tmp_path, files).start()
    assert settle(session) == {"present": COUNT}
    wait_recorded(session, COUNT)
    names = list(files.digests)
    stop_or_kill(session, how)
    behind.digests = files.digests
    behind.add(names[0], 30_000, version=1)  # overwrites the file in place, with the same size
    behind.add("new", 30_000, version=2)
    os.replace(behind.path("new"), behind.path(names[1]))
    files.digests[names[1]] = files.digests.pop("new")
    behind.path(names[2]).unlink()
    del files.digests[names[2]]
    # The bytes change, but the size and the modification time do not. Only the change time differs.
    found = os.stat(behind.path(names[3]))
    behind.add(names[3], 30_000, version=3)
    os.utime(behind.path(names[3]), ns=(found.st_atime_ns, found.st_mtime_ns))
    restart(session)
    assert session.status()["sources"][0]["present"] == COUNT - 4
    check_all(session, files)
    settle(session)
    check_all(session, files)


def damage_byte(copy: Path) -> None:
    copy.chmod(0o600)
    with copy.open("r+b") as file:
        file.seek(12_345)
        byte = file.read(1)[0]
        file.seek(12_345)
        file.write(bytes([byte ^ 1]))
    copy.chmod(0o400)


def damage_end(copy: Path) -> None:
    copy.chmod(0o600)
    os.truncate(copy, 29_999)


def damage_hole(copy: Path) -> None:
    """Replaces the copy's content by a hole, as a power cut may do if the copy was never synced."""
    copy.chmod(0o600)
    os.truncate(copy, 0)
    os.truncate(copy, 30_000)
    copy.chmod(0o400)


def damage_name(copy: Path) -> None:
    copy.unlink()


def damage_kind(copy: Path) -> None:
    copy.unlink()
    copy.mkdir()


DAMAGES = [damage_byte, damage_end, damage_hole, damage_name, damage_kind]


def test_a_copy_damaged_after_a_kill_is_never_served(session: Session, files: Files) -> None:
    """A copy that was damaged after the daemon was killed is never served. For each kind of damage,
    the test damages three copies."""
    copies = copies_in(session)
    names = list(files.digests)[: 3 * len(DAMAGES)]
    session.kill()
    for number, name in enumerate(names):
        DAMAGES[number % len(DAMAGES)](copies[name])
    restart(session)
    check_all(session, files)
    assert settle(session)["present"] == COUNT
    check_all(session, files)
    again = wait_recorded(session, COUNT)
    assert {again[name] for name in names}.isdisjoint(copies.values())


def test_what_a_short_session_did_not_come_to_is_not_trusted_after_it(
    session: Session, files: Files, source: SlowSource
) -> None:
    """If copies were damaged when a daemon was killed, they are never served. This also holds if
    another session has run since then, and was stopped before its scan was complete."""
    copies = copies_in(session)
    session.kill()
    for name in list(files.digests)[:3]:
        damage_hole(copies[name])
    source.latency(readdir=0.5)
    try:
        session.start()
        assert not session.status()["scanned"]
        session.stop()
    finally:
        source.latency(readdir=0.0)
    restart(session)
    check_all(session, files)


def test_what_a_session_of_another_source_did_not_look_at_is_not_trusted_after_it(
    session: Session, files: Files, tree: Path
) -> None:
    copies = copies_in(session)
    session.kill()
    for name in list(files.digests)[:3]:
        damage_hole(copies[name])
    text = session.config.read_text()
    session.config.write_text(text.replace(str(files.root), str(tree)))
    restart(session)
    tier = session.status()["tiers"][0]
    assert (tier["files"], tier["foreign"]) == (COUNT, COUNT)
    assert f"{COUNT} ({COUNT} of other sources)" in session.monarch("status").stdout
    session.stop()
    session.config.write_text(text)
    restart(session)
    check_all(session, files)


def is_clean(session: Session) -> bool:
    with closing(sqlite3.connect(f"file:{manifest_of(session)}?mode=ro", uri=True)) as db:
        return bool(db.execute("SELECT value FROM meta WHERE key = 'clean'").fetchone()[0] == "1")


def test_a_start_that_fails_leaves_a_clean_tier_clean(stopped: Session) -> None:
    session = stopped
    assert is_clean(session)
    session.paths.make()
    in_the_way = session.paths.path / "socket"
    in_the_way.mkdir()
    done = session.monarch("serve")
    assert done.returncode == 3, done.stderr
    assert is_clean(session)
    in_the_way.rmdir()
    restart(session)
    assert session.status()["sources"][0]["present"] == COUNT


def test_a_start_that_is_ended_leaves_a_clean_tier_clean(stopped: Session) -> None:
    """If a start is ended by SIGTERM at any moment, a clean tier stays clean. The test tries
    several moments, spread over the time that a start takes on this machine."""
    session = stopped
    began = time.monotonic()
    session.start()
    takes = time.monotonic() - began
    session.stop()
    parts = sized(4, 12)
    for part in range(parts):
        session.start(wait=False)
        assert session.daemon is not None
        time.sleep(takes * (0.5 + 0.6 * part / parts))
        session.daemon.terminate()
        session.daemon.wait(30)
        assert is_clean(session)
    restart(session)
    assert session.status()["sources"][0]["present"] == COUNT


def test_a_copy_that_was_lost_after_a_clean_end_is_not_served(
    stopped: Session, files: Files
) -> None:
    session = stopped
    copies = copies_in(session)
    damage_name(copies[next(iter(files.digests))])
    restart(session)
    assert session.status()["sources"][0]["present"] == COUNT - 1
    check_all(session, files)


def test_a_smaller_quota_drops_copies(
    session_factory: Callable[..., Session], stopped: Session, tmp_path: Path, files: Files
) -> None:
    # Each file takes eight blocks of 4 KiB; the directories and the manifest take room too.
    quota = 10 * 32768
    smaller = make(session_factory, tmp_path, files, quota)
    restart(smaller)
    assert du_bytes(tier_root(smaller.tiers[0])) <= quota
    found = settle(smaller)
    assert 1 <= found["present"] <= 9
    assert found["present"] + found["no_room"] == COUNT
    assert du_bytes(tier_root(smaller.tiers[0])) <= quota
    check_all(smaller, files)


def test_another_block_size_makes_the_copies_anew(
    session_factory: Callable[..., Session], stopped: Session, tmp_path: Path, files: Files
) -> None:
    old = set(copies_in(stopped).values())
    other = make(session_factory, tmp_path, files, block_size="64KiB")
    restart(other)
    check_all(other, files)
    assert settle(other) == {"present": COUNT}
    assert old.isdisjoint(wait_recorded(other, COUNT).values())
    check_all(other, files)
    other.kill()
    restart(other)
    assert other.status()["sources"][0]["present"] == COUNT


def test_debris_goes_and_what_is_not_ours_stays(session: Session, files: Files) -> None:
    root = tier_root(session.tiers[0])
    session.kill()
    debris = root / "c" / "0000000000001"
    debris.write_bytes(random_bytes(1000, "debris"))
    strangers = [root / "notes.txt", root / "c" / "README", root / "c" / "0000000000g01"]
    for path in strangers:
        path.write_text("not ours")
    restart(session)
    assert not debris.exists()
    assert [path.read_text() for path in strangers] == ["not ours"] * 3
    check_all(session, files)
    assert session.monarch("clear").returncode == 0
    session.stop()
    assert [path.read_text() for path in strangers] == ["not ours"] * 3


def test_a_file_written_just_before_its_fill_is_recorded_only_after_a_second_look(
    session_factory: Callable[..., Session],
    slow_factory: Callable[..., SlowSource],
    tmp_path: Path,
) -> None:
    source = slow_factory()
    behind = Files(source.backing).add_many(10, 20_000)
    # The files have a time in the future, so they count as just changed during the whole test.
    for name in behind.digests:
        os.utime(behind.path(name), (time.time() + 3600,) * 2)
    files = Files(source.mountpoint)
    files.digests = behind.digests
    session = make(session_factory, tmp_path, files).start()
    session.wait_scanned()
    source.reset()
    assert settle(session) == {"present": 10}
    session.kill()
    recorded = len(copies_in(session))
    # The program and the fill each open every file. Before a copy is recorded, its file is opened
    # once more.
    assert source.counts()["open"] >= 2 * 10 + recorded
    restart(session)
    assert session.status()["sources"][0]["present"] == recorded
    source.reset()
    assert settle(session) == {"present": 10}
    wait_recorded(session, 10)
    assert source.counts()["open"] >= 3 * (10 - recorded)
    check_all(session, files)
