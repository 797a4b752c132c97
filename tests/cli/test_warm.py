"""`monarch warm`: which files it copies, and what it prints."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import FILES, Factory
from cli.test_status import fields
from cli.warming import NO_DAEMON, present, warm
from support.files import Files
from support.session import MIB, Session, wait_until

from monarch_py.cli.warm import _text
from monarch_py.commands.warm import Progress
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.storage.tiers import tier_root


@pytest.fixture
def session(session_factory: Factory, source: Path) -> Session:
    """A session whose daemon copies only the files that `monarch warm` names."""
    return session_factory(source, prefetch="none").start()


# --- paths that are named -----------------------------------------------------------------------


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
    # The daemon is already running. The file gets its final name only once it contains its bytes,
    # so that the daemon does not find an empty file.
    (session.directory / "new").write_bytes(b"odd")
    (session.directory / "new").rename(odd)
    end = b"\0" if null else b"\n"
    listed = end.join(os.fsencode(path) for path in (odd, source / "d", "", odd)) + end
    file = session.directory / "list"
    file.write_bytes(listed)
    words = ["--from-file", "-" if by_stdin else str(file), *(["-0"] if null else [])]
    done = warm(session, *words, given=listed)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "2 files (8 B) filled, 0 (0 B) already there\n"


def test_nul_without_a_list_does_not_copy_everything(session: Session) -> None:
    done = warm(session, "-0", given=b"a\0")
    assert (done.returncode, done.stdout) == (2, "")
    assert "give --from-file LIST too" in done.stderr


def test_lists_without_a_path(session: Session, tmp_path: Path) -> None:
    done = warm(session, "--from-file", "-")
    assert (done.returncode, done.stdout) == (0, "0 files (0 B) filled, 0 (0 B) already there\n")
    assert present(session) == 0
    done = warm(session, "--from-file", tmp_path / "none")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"'--from-file': '{tmp_path / 'none'}': No such file or directory" in done.stderr


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


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(), "listing the sources, no file found yet"),
        (Progress(files=2, there_files=2), "listing the sources, 2 files already there"),
        (Progress(files=2, there_files=2, complete=True), "2 files already there"),
        (Progress(complete=True), "no file to copy"),
    ],
)
def test_without_a_file_to_copy_no_share_of_nothing_is_told(progress: Progress, text: str) -> None:
    assert _text(progress, 0.0, None) == text


# --- paths that cannot be copied ----------------------------------------------------------------


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
        tmp_path: f"outside every source; name a path below {source}, or add this path's directory",
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
    # If the user names no path, files that the configuration leaves out are not errors.
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
        hint = f"`max_storage_quota: 1MiB` for {tier} would hold all these files"
        assert done.stdout.endswith(
            f"; 1 (68.4 KiB) stay at the source: 1 did not fit into the tiers; {hint}\n"
        )


def test_the_quota_that_is_named_holds_what_did_not_fit(
    session_factory: Factory, source: Path, tmp_path: Path
) -> None:
    """Two files do not fit into the tier, and the user names only one of them to `monarch warm`.
    The quota that the command proposes has room for this file, but not for the other file."""
    for name in ("large", "other"):
        (source / name).write_bytes(b"x" * (3 * MIB))
    (tmp_path / "small").mkdir()
    tiers = [{"mount_point": tmp_path / "small", "max_storage_quota": MIB}]
    session = session_factory(source, tiers=tiers, prefetch="none").start()
    assert "2 did not fit" in warm(session).stdout
    done = warm(session, source / "large")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 did not fit into the tiers; `max_storage_quota: 4MiB` for" in done.stdout
    session.stop()
    session.config.write_text(session.config.read_text().replace(str(MIB), "4MiB"))
    session.start()
    done = warm(session, source / "a", source / "b", source / "d", source / "large")
    assert (done.returncode, "stay at the source" in done.stdout) == (0, False)


@pytest.mark.parametrize("has_another", [False, True])
def test_a_tier_that_was_lost_is_named_where_files_have_no_room(
    session_factory: Factory, source: Path, tmp_path: Path, has_another: bool
) -> None:
    """If a tier was lost and no other tier has room for the files, `monarch warm` names the lost
    tier and fails. If another tier holds all files, the command succeeds."""
    tiers = [{"mount_point": tmp_path / "lost", "max_storage_quota": MIB}]
    if has_another:
        tiers.append({"mount_point": tmp_path / "other", "max_storage_quota": MIB})
    for tier in tiers:
        Path(str(tier["mount_point"])).mkdir()
    session = session_factory(source, tiers=tiers, prefetch="none").start()
    assert warm(session).returncode == 0
    shutil.rmtree(tier_root(session.tiers[0]))
    first = wait_until(
        lambda: next((t for t in session.status()["tiers"] if not t["usable"]), None),
        what="a tier that is given up",
    )
    done = warm(session)
    if has_another:
        assert (done.returncode, done.stderr, present(session)) == (0, "", len(FILES))
    else:
        assert (done.returncode, done.stderr) == (1, f"monarch: {first['why']}\n")
        assert f"tier {session.tiers[0]} goes unused: its directory was" in done.stderr
        assert done.stdout.endswith("3 could not be copied, because no tier can be used\n")


def test_everything_is_switched_off(session_factory: Factory, source: Path) -> None:
    switch = source.parent / "off"
    session = session_factory(source, switch_file=str(switch), prefetch="none").start()
    switch.touch()
    wait_until(lambda: session.status()["switched_off"], what="the daemon's look at the switch")
    done = warm(session)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "switched off" in done.stderr


@pytest.mark.parametrize("is_there", [True, False])
def test_what_was_removed_after_the_scan_is_gone(
    session: Session, source: Path, is_there: bool
) -> None:
    """A file that was removed after the scan is reported as gone, whether it had a copy or not. The
    other files are copied."""
    session.wait_scanned()
    if is_there:
        assert warm(session).returncode == 0
    (source / "b").unlink()
    shutil.rmtree(source / "d")
    done = warm(session, source / "b", source / "d/c", source / "a")
    assert done.returncode == 1
    gone = "gone: it was removed from the source after the scan; restore it, or leave it out"
    assert done.stderr == "".join(f"monarch: {source / name}: {gone}\n" for name in ("b", "d/c"))
    there, filled = (
        ("1 (68.4 KiB)", "0 files (0 B)") if is_there else ("0 (0 B)", "1 file (68.4 KiB)")
    )
    assert done.stdout == f"{filled} filled, {there} already there\n"
    done = warm(session, source / "d")
    assert (done.returncode, done.stderr) == (1, f"monarch: {source / 'd'}: {gone}\n")


# --- files that are newer than the scan ---------------------------------------------------------


# Runs while no other test runs, because a new file may get the inode number of a file that another
# test has removed.
@pytest.mark.usefixtures("alone")
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
    session = session_factory(source, prefetch="none", scan_rate=15, scan_threads=1).start()
    done = warm(session, source / "a", source / "d/c")
    assert (done.returncode, done.stdout.partition(" (")[0]) == (0, "2 files")
    assert not session.status()["scanned"]
    done = warm(session)
    assert done.stdout.startswith("31 files ")
    assert session.status()["scanned"]


# Runs while no other test runs, because a new file may get the inode number of a file that another
# test has removed.
@pytest.mark.usefixtures("alone")
def test_a_directory_that_came_later_is_seen_at_once(session: Session, source: Path) -> None:
    """A directory is made after the scan, and `monarch warm` is called for the directories above
    it. Then the new directory is listed with the right names and attributes, and its files are
    served from copies."""
    session.wait_scanned()
    old = {path: "d" for path in (source, source / "d")}
    for directory in (source / "new/deep", source / "d/new"):
        directory.mkdir(parents=True)
        (directory / "f").write_text("new")
    (source / "d/g").write_text("new")
    done = warm(session, *old)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("6 files ")
    script = """
import glob, os, sys
for top, _, files in os.walk(sys.argv[1]):
    print(top, os.stat(top)[:7], sorted(os.listdir(top)), sorted(glob.glob(top + "/*")))
    for name in files:
        path = os.path.join(top, name)
        print(path, os.stat(path)[:7], os.path.exists(path), open(path).read()[:10])
"""
    before = session.totals()["hits"]
    said = session.python(script, source)
    assert said == session.python(script, source, preload=False)
    assert session.totals()["hits"] - before == said.count(" True ") == 6


# --- copies that exist already ------------------------------------------------------------------


def read_all(session: Session, source: Path, *, preload: bool = True) -> str:
    """Returns the attributes and the first bytes of each file, or the error number if the file does
    not exist."""
    script = """
import os, sys
for name in sys.argv[2:]:
    try:
        path = os.path.join(sys.argv[1], name)
        st = os.stat(path)
        print(name, st.st_ino, st.st_size, st.st_mtime_ns, open(path).read()[:20])
    except OSError as error:
        print(name, error.errno)
"""
    return session.python(script, source, "a", "b", "d/c", "d/e", preload=preload)


@pytest.mark.usefixtures("alone")
def test_files_that_were_replaced_at_the_source(session: Session, source: Path) -> None:
    (source / "d/e").write_text("before")
    assert warm(session).stdout.startswith("4 files ")
    assert read_all(session, source) == read_all(session, source, preload=False)
    (source / "fresh").write_text("another b")
    os.replace(source / "fresh", source / "b")  # replaces `b` with another file
    (source / "d/c").write_text("other")  # written in place; the size stays the same
    (source / "d/e").unlink()
    done = warm(session)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "2 files (14 B) filled, 2 of them again (replaced at the source),"
        " 1 (68.4 KiB) already there"
        "; 1 (6 B) stay at the source: 1 changed\n"
    )
    hits = session.totals()["hits"]
    assert read_all(session, source) == read_all(session, source, preload=False)
    assert session.totals()["hits"] == hits + 3
    done = warm(session, source / "b", source / "d", "--json")
    report = json.loads(done.stdout)
    assert (report["there_files"], report["replaced_files"], report["filled_files"]) == (2, 0, 0)


@pytest.mark.usefixtures("alone")
def test_a_file_whose_replacement_was_noticed_before(
    session_factory: Factory, source: Path
) -> None:
    """If the daemon has noticed that a file was replaced, programs read the file from the source
    until `monarch warm` has copied it again."""
    session = session_factory(source, prefetch="none", revalidate=1).start()
    assert warm(session).returncode == 0
    (source / "fresh").write_text("another b")
    os.replace(source / "fresh", source / "b")

    def is_noticed() -> bool:
        # The daemon compares its catalog with the source only while programs use the catalog.
        read_all(session, source)
        return bool(session.status()["sources"][0]["bypass"].get("changed"))

    wait_until(is_noticed, what="the daemon's comparison", every=0.1)
    assert warm(session).stdout.startswith("1 file (9 B) filled, ")
    hits = session.totals()["hits"]
    assert read_all(session, source) == read_all(session, source, preload=False)
    assert session.totals()["hits"] == hits + 3


def test_a_file_that_a_program_has_changed_stays_at_the_source(
    session: Session, source: Path
) -> None:
    assert warm(session).returncode == 0
    session.python("import sys; open(sys.argv[1], 'a').write('more')", source / "b")
    assert "1 changed" in warm(session).stdout
    assert read_all(session, source) == read_all(session, source, preload=False)


def test_copies_of_an_earlier_session_are_there(
    session_factory: Factory, old_source: Path, tmp_path: Path
) -> None:
    """`monarch warm` counts copies of an earlier session among the copies that existed already.
    This includes copies that the daemon finds only while `monarch warm` runs."""
    many = Files(old_source.with_name("many")).wait_until_old().root
    tier = tmp_path / "kept"
    tier.mkdir()
    tiers = [{"mount_point": tier, "max_storage_quota": 64 * MIB, "persistent": True}]
    session = session_factory(many, tiers=tiers, prefetch="none").start()
    names = sorted(os.listdir(many))[:-1]
    (tmp_path / "list").write_text("".join(f"{many}/{name}\n" for name in names))
    assert warm(session, "--from-file", tmp_path / "list").returncode == 0
    wait_until(lambda: not session.status()["pending"], what="the second look")
    session.stop()
    session.start()
    done = warm(session)
    assert done.stdout == "1 file (10 B) filled, 2,999 (29.3 KiB) already there\n"
    assert session.totals()["fills"] == 1


@pytest.mark.parametrize(("error", "status"), [(errno.ENOMEM, 1), (errno.EACCES, 0)])
def test_names_that_the_scan_could_not_read(
    session: Session, source: Path, monkeypatch: pytest.MonkeyPatch, error: int, status: int
) -> None:
    """If the scan could not read some names, `monarch warm` says that not all files have copies,
    although all known files have them. Names that the user may not read (`lost+found`) do not make
    the command fail."""
    ask = DaemonConnection.ask

    def asked(self: DaemonConnection, command: str, **arguments: Any) -> Any:
        answer = ask(self, command, **arguments)
        if command == "status":
            found = {"scan_errors": 2, "scan_error": os.strerror(error)}
            answer["sources"] = [{**each, **found} for each in answer["sources"]]
        return answer

    monkeypatch.setattr(DaemonConnection, "ask", asked)
    done = warm(session)
    assert done.returncode == status
    assert done.stderr == (
        f"monarch: {source}: 2 paths could not be read ({os.strerror(error)}), so the files there"
        " have no copies; see `monarch logs`\n"
    )
    done = warm(session, source / "b")
    assert (done.returncode, done.stderr) == (0, "")
