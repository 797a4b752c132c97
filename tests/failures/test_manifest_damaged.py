"""If the manifest of a persistent tier, or a copy recorded in it, is lost or damaged, jobs still
read the right bytes."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from support.draws import cases
from support.files import Files, check_all
from support.manifests import copies_in, manifest_of, wait_recorded
from support.mounts import Mounts
from support.session import MIB, Session
from support.watch import settle

COUNT, SIZE = 40, 10_000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    made = Files(tmp_path_factory.mktemp("manifest") / "source")
    return made.add_many(COUNT, SIZE).wait_until_old()


def level(mount_point: Path, *, persistent: bool) -> Mapping[str, object]:
    return {
        "mount_point": mount_point,
        "max_storage_quota": 16 * MIB,
        "persistent": persistent,
    }


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Iterator[Path]:
    """Yields a tier that has recorded copies of all files, and that no daemon uses. Each test uses
    a duplicate of this tier. The manifest is valid in the duplicate too, because it refers to
    copies by their names."""
    place = tmp_path_factory.mktemp("recorded")
    (place / "tier").mkdir()
    with Session(place, files.root, tiers=[level(place / "tier", persistent=True)]) as made:
        made.start()
        assert settle(made) == {"present": COUNT}
        wait_recorded(made, COUNT)
        made.stop()
        yield place / "tier"


@pytest.fixture
def session(
    session_factory: Callable[..., Session], tmp_path: Path, files: Files, recorded: Path
) -> Session:
    """Returns a session without a daemon, with two tiers. The first tier is persistent and has
    recorded copies of all files; the second is not persistent."""
    shutil.copytree(recorded, tmp_path / "first")
    (tmp_path / "second").mkdir()
    tiers = [
        level(tmp_path / name, persistent=persistent)
        for name, persistent in (("first", True), ("second", False))
    ]
    return session_factory(files.root, tiers=tiers, directory=tmp_path)


def lost(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(20_000))


def garbage_inside(path: Path) -> None:
    """Overwrites all pages except the first one. So the database can be opened but not read."""
    data = bytearray(path.read_bytes())
    data[4096:] = random.Random(2).randbytes(len(data) - 4096)
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def a_journal_that_is_none(path: Path) -> None:
    path.with_name(path.name + "-journal").mkdir()


def a_column_renamed(path: Path) -> None:
    data = path.read_bytes()
    assert b"ino" in data
    path.write_bytes(data.replace(b"ino", b"ixo", 1))


def a_page_flipped(path: Path) -> None:
    """Inverts the bytes of a page that belongs to an index of the manifest. A daemon checks all
    pages at its start only if the manifest records an unclean end. Otherwise it finds this damage
    only when it writes the page. So this function also records an unclean end."""
    change(path, "UPDATE meta SET value = 0 WHERE key = 'clean'")
    data = bytearray(path.read_bytes())
    with closing(sqlite3.connect(path)) as db:
        where = "name = 'sqlite_autoindex_sources_1'"
        (root,) = db.execute(f"SELECT rootpage FROM sqlite_master WHERE {where}").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    for at in range((root - 1) * size, root * size):
        data[at] ^= 0xFF
    path.write_bytes(data)


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
    """Makes the recorded checksums wrong. Also records an unclean end, so that the next daemon
    checks the copies."""
    change(path, "UPDATE copies SET sum = sum + 1", "UPDATE meta SET value = 0 WHERE key = 'clean'")


DAMAGES = [
    lost,
    empty,
    garbage,
    garbage_inside,
    cut,
    a_directory,
    a_link,
    a_journal_that_is_none,
    a_column_renamed,
    a_page_flipped,
    other_tables,
    nonsense_rows,
    newer_version,
    wrong_sums,
]
# The kinds of damage that are tested without --long: one for each check by which the daemon finds
# damage.
EACH_WAY = [
    lost,
    garbage_inside,
    a_journal_that_is_none,
    a_page_flipped,
    nonsense_rows,
    newer_version,
    wrong_sums,
]


@pytest.mark.parametrize("damage", cases(DAMAGES, EACH_WAY), ids=lambda d: d.__name__)
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
        assert first["usable"] is (damage is not newer_version)
        assert done.stderr == "".join(
            f"monarch: {said}\n" for said in (first["why"], first["lost"]) if said
        )
        assert (damage is not wrong_sums) is bool(done.stderr)
        kept = manifest_of(session).with_name("manifest.sqlite.damaged")
        if first["usable"]:
            wait_recorded(session, COUNT)
        if damage in (newer_version, wrong_sums):
            assert not kept.exists()
        elif damage in (lost, empty):
            assert f"empty or gone, so its {COUNT} copies are removed and made again" in done.stderr
        else:
            assert re.search(r"manifest was damaged \(.*\) and is kept as", done.stderr)
            assert str(kept) in done.stderr
            assert f"so its {COUNT} copies are removed and made again" in done.stderr
    finally:
        assert session.monarch("stop").returncode == 0
    log = session.paths.log.read_text() if session.paths.log.exists() else ""
    assert "Traceback" not in log


def test_a_damaged_manifest_that_cannot_be_set_aside_costs_its_tier_alone(
    session: Session, files: Files, mounts: Mounts
) -> None:
    manifest = manifest_of(session)
    garbage(manifest)
    mounts.pin(manifest)
    done = session.monarch("start")
    try:
        assert done.returncode == 0, done.stderr
        why = session.status()["tiers"][0]["why"]
        assert done.stderr == f"monarch: {why}\n"
        assert why == (
            f"tier {session.tiers[0]} goes unused: {manifest}: Device or resource busy;"
            " repair its file system, then run `monarch stop` and `monarch start`"
        )
        assert settle(session)["present"] == COUNT
        check_all(session, files)
    finally:
        assert session.monarch("stop").returncode == 0


def test_verify_says_what_to_do_and_clear_removes_it(session: Session) -> None:
    a_column_renamed(manifest_of(session))
    told = next(
        e
        for e in json.loads(session.monarch("doctor", "--json").stdout)
        if e["level"] != "ok" and e["what"] == "tier (ssd)"
    )
    assert told["level"] == "warning"
    assert "the manifest is damaged (no such column: ino); `monarch start` sets it" in told["found"]
    done = session.monarch("verify")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (4, "", 1)
    assert "the manifest is damaged (no such column: ino); `monarch start` sets it" in done.stderr
    assert session.monarch("start").returncode == 0
    assert session.monarch("stop").returncode == 0
    assert manifest_of(session).with_name("manifest.sqlite.damaged").exists()
    assert session.monarch("verify").returncode == 0
    assert session.monarch("clear").returncode == 0
    assert not manifest_of(session).parent.exists()


def test_a_newer_version_keeps_its_copies(session: Session, files: Files) -> None:
    """A daemon does not change the copies and the manifest of a newer version of Monarch, because
    the newer version may run again later."""
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
    session_factory: Callable[..., Session], tmp_path: Path, files: Files, recorded: Path
) -> None:
    mount = shutil.copytree(recorded, tmp_path / "only")
    session = session_factory(files.root, tiers=[level(mount, persistent=True)])
    garbage(manifest_of(session))
    session.start()
    assert settle(session)["present"] == COUNT
    check_all(session, files)
    wait_recorded(session, COUNT)


# --- copies -----------------------------------------------------------------------------------


def shortened(copy: Path) -> None:
    os.truncate(copy, SIZE - 5)


def emptied_copy(copy: Path) -> None:
    os.truncate(copy, 0)


def extended(copy: Path) -> None:
    os.truncate(copy, SIZE + 1)


def removed(copy: Path) -> None:
    copy.unlink()


def a_fifo(copy: Path) -> None:
    copy.unlink()
    os.mkfifo(copy, 0o400)


def a_link_elsewhere(copy: Path) -> None:
    copy.unlink()
    other = copy.parents[2] / "other"
    other.write_bytes(bytes(SIZE))
    copy.symlink_to(other)


def a_link_to_nothing(copy: Path) -> None:
    copy.unlink()
    copy.symlink_to("/nowhere/at/all")


def a_directory_instead(copy: Path) -> None:
    copy.unlink()
    copy.mkdir(mode=0o400)


def replaced(copy: Path) -> None:
    """Replaces the copy by a file of the same size, as a tool that restores files may do."""
    copy.unlink()
    copy.write_bytes(bytes(SIZE))
    copy.chmod(0o644)


def with_a_second_name(copy: Path) -> None:
    os.link(copy, copy.parents[2] / "second")


TROUBLES = [
    shortened,
    emptied_copy,
    extended,
    removed,
    a_fifo,
    a_link_elsewhere,
    a_link_to_nothing,
    a_directory_instead,
    replaced,
    with_a_second_name,
]


def test_copies_that_were_cut_or_replaced_are_seen_said_and_made_anew(
    session: Session, files: Files
) -> None:
    """After an orderly end, some copies are truncated, replaced or removed. The next daemon notices
    this, reports it once, and makes these copies again."""
    tier, before = session.tiers[0], copies_in(session)
    names = list(files.digests)[: len(TROUBLES)]
    for name, trouble in zip(names, TROUBLES, strict=True):
        trouble(before[name])
    said = (
        f"tier {tier}: {len(TROUBLES)} of {COUNT} copies do not match the manifest"
        " (missing, truncated or replaced) and are made again"
    )
    reading = [str(files.path(name)) for name in names]
    done = session.monarch("run", "-q", "--", "sha256sum", *reading, timeout=30)
    assert (done.returncode, done.stderr) == (0, f"monarch: {said}\n")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        files.digests[name] for name in names
    ]
    # The run has read the damaged files, so most of them have copies again. The next daemon must
    # not report the same damage again.
    done = session.monarch("start")
    try:
        assert (done.returncode, done.stderr) == (0, "")
        assert session.status()["tiers"][0]["lost"] == ""
        check_all(session, files)
        assert settle(session) == {"present": COUNT}
        wait_recorded(session, COUNT)
    finally:
        assert session.monarch("stop").returncode == 0
    after = copies_in(session)
    assert {after[name] for name in names}.isdisjoint(before.values())
    assert all(after[name] == before[name] for name in files.digests if name not in names)
    assert sorted(os.listdir(tier / f"monarch-{os.geteuid()}/c")) == sorted(
        copy.name for copy in after.values()
    )
