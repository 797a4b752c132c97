"""With `scan: lazy`, the daemon lists a directory only when a program or a command needs it."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from daemon.following import plan_of
from daemon.old_files import DIRECTORIES, MANY, SIZE, OldFiles, add_tree
from daemon.planned_site import wait_followed
from hypothesis import given
from hypothesis import strategies as st
from support.draws import cases
from support.files import Files, check_all, read_all
from support.session import MIB, Session, wait_until

from monarch_py.daemon.fill.directory_prefetch import NAMES
from monarch_py.daemon.scan import scanner
from monarch_py.daemon.scan.source import Parts
from monarch_py.demo.slowsource import SlowSource
from monarch_py.ipc.catalog import CatalogReader

Factory = Callable[..., Session]

# Reads each file from its beginning to its end.
READ = """
import sys
for path in sys.argv[1:]:
    with open(path, "rb", 0) as f:
        while f.read(1 << 20): pass
"""
DIGEST = """
import hashlib, sys
print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())
"""
LIST = "import os, sys\nassert len(os.listdir(sys.argv[1])) > 1"


# A tree of DEPTH levels, in which each directory has a subdirectory for each of LETTERS.
DEPTH, LETTERS = 3, "ab"
ALL = ["/".join(way) for n in range(DEPTH + 1) for way in itertools.product(LETTERS, repeat=n)]


@given(st.lists(st.tuples(st.sampled_from([*ALL, None]), st.booleans())))
def test_each_directory_that_is_asked_for_is_listed(asked: list[tuple[str | None, bool]]) -> None:
    """Each directory that is asked for is listed by a later walk.

    `asked` is a sequence of pairs (directory, is_deep). A pair asks for the directory and, if
    `is_deep`, for all directories below it. If the directory is None, the pair stands for a walk,
    which lists the directories that were asked for so far."""
    parts, listed, expected = Parts(), Counter[str](), set()
    for directory, is_deep in [*asked, (None, False), (None, False)]:
        if directory is not None:
            parts.add(directory, is_deep=is_deep)
            expected |= {d for d in ALL if d == directory or (is_deep and lies_in(d, directory))}
        elif len(parts):
            directories, goes_below = parts.take()
            walked = {
                d for d in ALL for w in directories if d == w or (goes_below and lies_in(d, w))
            }
            listed.update(walked)
            assert len(walked) >= len(directories), "one of the directories lies in another"
    assert not len(parts)
    assert set(listed) == expected
    # A directory may be listed once on its own, once together with all directories below it, and
    # once more with each directory above it.
    assert max(listed.values(), default=0) <= DEPTH + 2


def lies_in(path: str, directory: str) -> bool:
    return not directory or path.startswith(directory + "/")


@pytest.fixture
def tree(tmp_path: Path) -> Files:
    return add_tree(Files(tmp_path / "source"))


def lazy(session_factory: Factory, source: Path | list[Path], **settings: Any) -> Session:
    return session_factory(source, **{"prefetch": "auto", "scan": "lazy", **settings}).start()


def known(session: Session) -> set[str]:
    """The paths of all entries of the catalog."""
    told = CatalogReader.open(session.paths, session.connection.ask("where")["generation"])
    return {told.path(i) for i in range(len(told.entries))}


def of(files: Files, directory: str) -> list[Path]:
    return [files.path(name) for name in files.digests if name.startswith(directory)]


def read(session: Session, *paths: Path) -> None:
    session.python(READ, *paths)


def warm(session: Session, *paths: Path) -> None:
    said = session.monarch("warm", *map(str, paths))
    assert said.returncode == 0, said.stderr


def present(session: Session) -> int:
    return int(session.status()["sources"][0]["present"])


def test_nothing_is_looked_at_before_it_is_asked_for(
    session_factory: Factory, slow_factory: Callable[..., SlowSource]
) -> None:
    slow = slow_factory(keep_pages=True)
    made = add_tree(Files(slow.backing))
    files = Files(slow.mountpoint)
    files.digests = made.digests
    session = lazy(session_factory, slow.mountpoint)
    session.wait_scanned()
    assert known(session) == set()
    slow.reset()
    read(session, *of(files, "c3/")[: NAMES + 1])
    wait_until(lambda: present(session) == MANY, what="copies of the whole directory")
    session.wait_idle()
    assert known(session) == {"c3"} | {name for name in files.digests if name.startswith("c3/")}
    counts = slow.counts()
    others = (DIRECTORIES - 1) * MANY
    # Each file of the directory c3 is looked up, and its attributes are read. The attributes of
    # files in other directories are not read.
    assert counts["getattr"] < 4 * MANY + others / 10
    assert counts["readdir"] <= 4
    assert counts["open"] == MANY


def test_large_files_make_their_directory_known(session_factory: Factory, tmp_path: Path) -> None:
    """Reads of a few large files in a directory make the daemon list and fill the directory. A file
    whose descriptor a program has handed over counts as read to its end."""
    files = Files(tmp_path / "source").add_many(3 * NAMES, MIB, "d/f")
    files.add_many(MANY, SIZE, "e/f")
    session = lazy(session_factory, files.root)
    names = of(files, "d/")
    for path in names[: scanner.NAMES]:
        read(session, path)
    wait_until(lambda: present(session) == 3 * NAMES, what="copies of the whole directory")
    assert not any(name.startswith("e/") for name in known(session))


def test_directories_that_are_read_make_known_what_lies_beside_them(
    session_factory: Factory, tree: Files
) -> None:
    session = lazy(session_factory, tree.root)
    first = [of(tree, f"c{i}/")[0] for i in range(NAMES)]
    read(session, *first)  # reading one file does not make the scan list the file's directory
    wait_until(lambda: present(session) == NAMES, what="copies")
    session.wait_idle()
    assert known(session) == {str(path.relative_to(tree.root)) for path in first}
    for directory in range(NAMES):
        read(session, *of(tree, f"c{directory}/")[:NAMES])
    wait_until(lambda: present(session) == DIRECTORIES * MANY, what="all copies")
    check_all(session, tree)


def test_few_files_of_a_large_directory_do_not_list_it(
    session_factory: Factory, tree: Files
) -> None:
    session = lazy(session_factory, tree.root)
    few = of(tree, "c1/")[: scanner.NAMES - 1]
    read(session, *few)
    wait_until(lambda: present(session) == len(few), what="copies")
    session.wait_idle()
    assert known(session) == {str(path.relative_to(tree.root)) for path in few}


@pytest.mark.parametrize("directory", cases(["c4", "c0"], short=["c4"]))
def test_a_full_scan_comes_first_to_what_is_asked_for(
    session_factory: Factory, tree: Files, directory: str
) -> None:
    session = lazy(session_factory, tree.root, scan="full", scan_rate=60, scan_threads=1)
    read(session, *of(tree, f"{directory}/")[: NAMES + 1])
    names = {name for name in tree.digests if name.startswith(directory)}
    wait_until(lambda: names <= known(session), what="the names of the files beside them")
    assert not session.status()["scanned"]
    assert len(known(session)) < DIRECTORIES * MANY * 2 / 3


def test_it_reads_as_without(session_factory: Factory, tree: Files) -> None:
    os.symlink("c2/f00001", tree.root / "link")
    os.symlink("c2", tree.root / "c9")
    script = """
import json, os, sys
def told(path):
    try: s = os.stat(path)
    except OSError as error: return error.errno
    return [s.st_ino, s.st_size, s.st_mtime_ns, s.st_mode]
found = sorted([d, sorted(ds), sorted(fs)] for d, ds, fs in os.walk('.'))
names = [os.path.join(d, n) for d, ds, fs in found for n in (*ds, *fs)] + ['c1/no', 'no/no', 'c1/.']
for path in names:
    if os.path.isfile(path): open(path, 'rb').read()
print(json.dumps([found, [told(path) for path in names], os.listdir('c9'), open('link').closed]))
"""
    session = lazy(session_factory, tree.root)
    plain = session.python(script, cwd=tree.root, preload=False)
    for _ in range(2):
        assert session.python(script, cwd=tree.root) == plain
        session.wait_idle()


def test_a_file_that_another_process_changes_is_seen(session_factory: Factory, tree: Files) -> None:
    """The daemon notices that a file has changed, whether it knows the file from the listing of a
    directory or only from an open."""
    session = lazy(session_factory, tree.root, revalidate="1s")
    single, listed = of(tree, "c0/")[0], of(tree, "c1/")
    read(session, single, *listed)
    wait_until(lambda: present(session) == 1 + MANY, what="copies")
    for path in (single, listed[5]):
        os.replace(tree.add("new", SIZE, version=1), path)
        name = str(path.relative_to(tree.root))
        tree.digests[name] = tree.digests.pop("new")

    def is_new() -> bool:
        found = read_all(session, tree.root)
        return {name: told["sha256"] for name, told in found.items()} == tree.digests

    wait_until(is_new, what="the present content")


@pytest.mark.parametrize("listed", cases(["source", "nothing"], short=["source"]))
def test_changes_are_seen_with_several_sources(
    session_factory: Factory, tree: Files, tmp_path: Path, listed: str
) -> None:
    """A file of the first of two sources changes, and programs soon read the new content. Before
    the change, the daemon has listed either the whole first source or only the directories that
    programs read."""
    Files(tmp_path / "other").add("d/f", SIZE)
    session = lazy(session_factory, [tree.root, tmp_path / "other"], revalidate="1s")
    if listed == "source":
        warm(session, tree.root)
    else:
        check_all(session, tree)
        session.wait_idle()
    path = of(tree, "c2/")[7]
    os.replace(tree.add("new", SIZE, version=1), path)
    name = str(path.relative_to(tree.root))
    tree.digests[name] = tree.digests.pop("new")
    wait_until(
        lambda: read_all(session, tree.root)[name]["sha256"] == tree.digests[name],
        what="the present content",
    )


def test_changes_are_seen_while_a_directory_is_listed(
    session_factory: Factory, tree: Files
) -> None:
    session = lazy(session_factory, tree.root, revalidate="1s", scan_rate=4, scan_threads=1)
    path = of(tree, "c2/")[0]
    read(session, path)
    wait_until(lambda: present(session) == 1, what="a copy")
    session.connection.ask("scan", directories=[(0, "c4")])
    os.replace(tree.add("new", SIZE, version=1), path)
    new = tree.digests["new"]
    name = str(path.relative_to(tree.root))
    wait_until(lambda: session.python(DIGEST, path).strip() == new, what="the new file")
    assert not session.status()["scanned"], "the source was listed too soon"
    assert name in known(session)


def test_warm_takes_directories_with_long_names(session_factory: Factory, tmp_path: Path) -> None:
    """`monarch warm` also takes more names than fit into one request to the daemon."""
    deep = "/".join(["n" * 200] * 17)
    files = Files(tmp_path / "source")
    for number in range(350):
        (files.root / deep / f"d{number}").mkdir(parents=True)
    files.add(f"{deep}/d7/f", SIZE)
    session = lazy(session_factory, files.root)
    (tmp_path / "list").write_text("".join(f"{files.root}/{deep}/d{i}\n" for i in range(350)))
    said = session.monarch("warm", "--from-file", str(tmp_path / "list"))
    assert said.returncode == 0, said.stderr
    assert present(session) == 1


def test_warm_lists_what_it_is_given(session_factory: Factory, tree: Files) -> None:
    session = lazy(session_factory, tree.root)

    def is_told(directory: str) -> bool:
        before = session.totals()["metadata_hits"]
        session.python(LIST, tree.root / directory)
        return bool(session.totals()["metadata_hits"] > before)

    warm(session, tree.root / "c4", tree.root / "c2")
    assert not is_told("c4")
    assert present(session) == 2 * MANY
    assert all(name.startswith(("c4", "c2")) for name in known(session))
    warm(session)
    assert present(session) == DIRECTORIES * MANY
    warm(session, tree.root / "c5" / "f00003")
    # The whole source is known: the library answers listings as after a scan.
    assert session.status()["scanned"]
    wait_until(lambda: is_told("c5"), what="the listings")


def test_copies_of_earlier_sessions_serve_when_their_files_are_asked_for(
    session_factory: Factory, old_files: OldFiles, tmp_path: Path
) -> None:
    tree = old_files.tree.wait_until_old()
    tier = {"mount_point": str(tmp_path / "tier"), "max_storage_quota": 2 * MIB, "persistent": True}
    (tmp_path / "tier").mkdir()
    session = lazy(session_factory, tree.root, tiers=[tier])
    read(session, *of(tree, "c0/"), *of(tree, "c1/"))
    wait_until(lambda: present(session) == 2 * MANY, what="copies")
    session.stop()
    session.start()
    before = session.totals()["source_bytes_read_by_fills"]
    read(session, *of(tree, "c1/"))
    wait_until(lambda: present(session) == MANY, what="copies of the earlier session")
    assert session.totals()["source_bytes_read_by_fills"] == before
    session.stop()  # the daemon also keeps copies of files that nobody has asked for
    session.start()
    warm(session)
    assert session.totals()["source_bytes_read_by_fills"] == (DIRECTORIES - 2) * MANY * SIZE
    check_all(session, tree)


def test_a_plan_has_everything_listed(
    session_factory: Factory, tree: Files, tmp_path: Path
) -> None:
    plan = plan_of(tree, tree.root, tmp_path / "plan.npz")
    session = lazy(session_factory, tree.root, plan=str(plan))
    wait_followed(session)
    assert len(known(session)) == DIRECTORIES * (MANY + 1) + 1


def test_everything_cannot_be_filled_and_not_be_listed(
    session_factory: Factory, tree: Files
) -> None:
    said = session_factory(tree.root, scan="lazy", prefetch="eager").monarch("start")
    assert said.returncode == 2
    assert re.search(r":\d+: scan: 'prefetch: eager' .*; remove one of the two", said.stderr)
