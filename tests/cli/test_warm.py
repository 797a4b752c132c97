"""`monarch warm`: what it fills, what it says, and what becomes of it when it is interrupted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cli.conftest import FILES, Factory
from cli.test_status import fields
from cli.warming import NO_DAEMON, present, warm
from support.files import Files
from support.session import MIB, Session, wait_until


@pytest.fixture
def session(session_factory: Factory, source: Path) -> Session:
    """Fills only what is named."""
    return session_factory(source, prefetch="none").start()


# --- what is named ------------------------------------------------------------------------------


def test_a_file_a_directory_and_everything(session: Session, source: Path) -> None:
    done = warm(session, source / "b")
    said = "1 file (19.5 KiB) filled, 0 (0 B) already there\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
    assert present(session) == 1
    done = warm(session, source / "d", source / "b")
    assert done.stdout == "1 file (5 B) filled, 1 (19.5 KiB) already there\n"
    done = warm(session)
    assert done.stdout == "1 file (68.4 KiB) filled, 2 (19.5 KiB) already there\n"
    assert present(session) == len(FILES)
    served = session.python("print(len(open(__import__('sys').argv[1]).read()))", source / "a")
    assert served == f"{FILES['a']}\n"
    assert session.totals()["hits"] == 1


@pytest.mark.parametrize(("null", "by_stdin"), [(False, True), (True, False)])
def test_a_list(session: Session, source: Path, null: bool, by_stdin: bool) -> None:
    odd = source / ("new\nline" if null else "with space")
    odd.write_bytes(b"odd")
    end = b"\0" if null else b"\n"
    listed = end.join(os.fsencode(path) for path in (odd, source / "d", "", odd)) + end
    file = session.directory / "list"
    file.write_bytes(listed)
    words = ["--from-file", "-" if by_stdin else str(file), *(["-0"] if null else [])]
    done = warm(session, *words, given=listed)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "2 files (8 B) filled, 0 (0 B) already there\n"


def test_lists_without_a_path(session: Session, tmp_path: Path) -> None:
    done = warm(session, "--from-file", "-")
    assert (done.returncode, done.stdout) == (0, "0 files (0 B) filled, 0 (0 B) already there\n")
    assert present(session) == 0
    done = warm(session, "--from-file", tmp_path / "none")
    assert (done.returncode, done.stdout) == (1, "")
    mend = "No such file or directory; name a file with paths"
    assert done.stderr == f"monarch: {tmp_path / 'none'}: {mend}\n"


def test_every_spelling_of_a_path(
    session_factory: Factory, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        (source / f"g{number}").write_bytes(b"0123")
    (source / "to_directory").symlink_to("d")
    (source / "to_file").symlink_to("g3")
    alias, outside = tmp_path / "alias", tmp_path / "outside"
    alias.symlink_to(source)
    outside.symlink_to(source / "g4")
    session = session_factory(alias, prefetch="none").start()
    session.wait_scanned()
    spelled: dict[Path, list[str | Path]] = {
        source / "d": ["c", "~/dataset/g0"],
        alias / "d": ["../g2", "../to_directory/../g5"],
        tmp_path: [alias / "a", source / "b", "./dataset//g1/", alias / "to_file", "outside"],
    }
    for cwd, texts in spelled.items():
        done = warm(session, *texts, cwd=cwd, HOME=str(tmp_path))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"{len(texts)} files ")
    assert present(session) == len(FILES) + 6


def test_directories_that_hold_each_other(session: Session, source: Path) -> None:
    files = Files(source)
    for name in ("e/f/g/1", "e/f/2", "e/3", "ef/4", "e/fg/5"):
        files.add(name, 10)
    done = warm(session, source / "e/f", source / "e/f/g", source / "e/f/2", source / "ef")
    assert done.stdout == "3 files (30 B) filled, 0 (0 B) already there\n"


# --- what means nothing -------------------------------------------------------------------------


def test_no_daemon(session_factory: Factory, source: Path) -> None:
    done = warm(session_factory(source), source / "a")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", NO_DAEMON)


def test_what_cannot_be_filled_is_named_and_the_rest_goes_on(
    session_factory: Factory, source: Path, tmp_path: Path
) -> None:
    (source / "x").mkdir()
    (source / "x/left.tmp").touch()
    os.mkfifo(source / "pipe")
    (source / "dangling").symlink_to("nothing")
    chosen = [{"path": str(source), "exclude": ["*.tmp"]}]
    session = session_factory(chosen, prefetch="none").start()
    wrong = {
        tmp_path: f"outside every source; name what is below {source}, or add its directory",
        source / "none": "No such file or directory; check the spelling",
        source / "a/below": "Not a directory; check the spelling",
        source / "dangling": "No such file or directory; check the spelling",
        source / "pipe": "neither a file nor a directory",
        source / "x/left.tmp": "left out by the configuration; change `include`, `exclude`",
        source / "x": "left out by the configuration; change `include`, `exclude`",
    }
    session.wait_scanned()
    done = warm(session, *wrong, source / "b", "--json")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert len(lines) == len(wrong)
    for path, why in wrong.items():
        assert any(line.startswith(f"monarch: {path}: {why}") for line in lines), path
    report = json.loads(done.stdout)
    assert set(report) == fields("`warm --json`")
    assert {problem["path"] for problem in report["problems"]} == set(map(str, wrong))
    assert (report["filled_files"], report["filled_bytes"]) == (1, FILES["b"])
    assert report["at_source"] == {"excluded": 1}
    assert present(session) == 1
    # In everything, files that are left out are no mistake of the user's.
    done = warm(session)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("; 1 (0 B) stay at the source: 1 excluded\n")


def test_a_tier_that_is_too_small(session_factory: Factory, source: Path, tmp_path: Path) -> None:
    tier = tmp_path / "small"
    tier.mkdir()
    tiers = [{"mount_point": tier, "max_storage_quota": 60_000}]
    session = session_factory(source, tiers=tiers, prefetch="none").start()
    for filled, there in ((2, 0), (0, 2)):
        done = warm(session)
        assert done.returncode == 0
        assert done.stdout.startswith(f"{filled} files")
        assert f" filled, {there} (" in done.stdout
        assert done.stdout.endswith("; 1 (68.4 KiB) stay at the source: 1 no room\n")


def test_everything_is_switched_off(session_factory: Factory, source: Path) -> None:
    switch = source.parent / "off"
    session = session_factory(source, switch_file=str(switch), prefetch="none").start()
    switch.touch()
    wait_until(lambda: session.status()["switched_off"], what="the daemon's look at the switch")
    done = warm(session)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "switched off" in done.stderr


# --- files that are newer than the scan ---------------------------------------------------------


def test_files_and_directories_that_come_later(session: Session, source: Path) -> None:
    session.wait_scanned()
    later = Files(source)
    for name in ("later", "d/later", "new/one", "new/deep/two"):
        later.add(name, 10)
    os.mkfifo(source / "new/pipe")
    (source / "new/link").symlink_to("one")
    done = warm(session, source / "later", source / "d/later", source / "new")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "4 files (40 B) filled, 0 (0 B) already there\n"


def test_files_that_the_scan_has_not_met_yet(
    session_factory: Factory, source: Path, tmp_path: Path
) -> None:
    Files(source).add_many(30, 100)
    session = session_factory(source, prefetch="none", scan_rate=20, scan_threads=1).start()
    done = warm(session, source / "a", source / "d/c")
    assert (done.returncode, done.stdout.partition(" (")[0]) == (0, "2 files")
    assert not session.status()["scanned"]
    done = warm(session)
    assert done.stdout.startswith("31 files ")
    assert session.status()["scanned"]


# --- copies that are there ----------------------------------------------------------------------


def test_copies_of_an_earlier_session_are_there(session_factory: Factory, source: Path) -> None:
    tier = source.parent / "kept"
    tier.mkdir()
    tiers = [{"mount_point": tier, "max_storage_quota": 64 * MIB, "persistent": True}]
    session = session_factory(source, tiers=tiers, prefetch="none").start()
    assert warm(session, source / "a", source / "b").returncode == 0
    # Files that changed just now are recorded two seconds later only.
    wait_until(lambda: not session.status()["pending"], what="the second look")
    session.stop()
    session.start()
    done = warm(session)
    assert done.stdout == "1 file (5 B) filled, 2 (87.9 KiB) already there\n"
    assert session.totals()["fills"] == 1
