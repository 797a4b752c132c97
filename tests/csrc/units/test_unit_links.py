"""Tests how the library finds out where a path leads: from the path's text, and through links
outside the sources."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import ffi
from csrc.units.place import Place
from csrc.units.serving import Served
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import examples

NEW, ELSEWHERE, DIRECTORY, FILES = range(4)
AT_FDCWD = -100
TAG = 14  # the lowest bit of a key's tag
AGAIN = 64


@pytest.fixture
def table(lib: Any) -> Iterator[Any]:
    lib.links_forget()
    yield lib
    lib.links_forget()


def hint(lead: int, prefix: int = 0) -> int:
    return lead | prefix << 2


# --- the table ------------------------------------------------------------------------------------


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 7), st.integers(0, 3), st.integers(0, 4095)), max_size=25))
def test_the_table_keeps_what_was_learnt_last(lib: Any, script: list[tuple[int, int, int]]) -> None:
    """The table consists of sets, each for at most four directories. A new directory in a full set
    replaces a directory that the library can learn again at the lowest cost. NEW is the hint for a
    directory that the library does not know, so storing NEW removes the directory's entry."""
    lib.links_forget()
    model: dict[int, int] = {}
    for tag, lead, prefix in script:
        key = tag << TAG | 5
        before = dict(model)
        lib.links_keep(key, lead, prefix)
        now = {t: found for t in range(1, 8) if (found := lib.links_find(t << TAG | 5))}
        model.pop(tag, None)
        if lead:
            model[tag] = hint(lead, prefix)
        gone = model.keys() - now.keys()
        if gone:
            (lost,) = gone
            assert len(before) == 4 and tag not in before
            assert before[lost] & 3 == min(one & 3 for one in before.values())
            del model[lost]
        assert now == model
        assert not lib.links_find(tag << TAG | 6), "another set"
    lib.links_forget()


def test_links_are_met_once_one_leads_into_a_source(table: Any) -> None:
    for lead in (NEW, ELSEWHERE):
        table.links_keep(5, lead, 0)
        assert not table.links_are_met()
    table.links_keep(5, FILES, 0)
    assert table.links_are_met()
    table.links_forget()
    table.links_keep(5, DIRECTORY, 3)
    assert table.links_are_met()


def test_a_relative_path_is_another_in_another_directory(table: Any) -> None:
    absolute, relative = table.links_key(b"/a"), table.links_key(b"a")
    table.links_move()
    assert table.links_key(b"/a") == absolute
    assert table.links_key(b"a") != relative
    assert table.links_key(b"a") != table.links_key(b"b")


def learn(table: Any, path: str, lead: int, prefix: int = 0) -> None:
    table.links_keep(table.links_key(path.encode()), lead, prefix)


def test_a_hint_is_that_of_the_path_its_directory_or_one_above(table: Any) -> None:
    learn(table, "/x/link", DIRECTORY, 7)
    for path in ("/x/link", "/x/link/f", "/x/link/sub/f", "/x/link/sub/deep/f"):
        assert table.links_hint(path.encode()) == hint(DIRECTORY, 7), path
        assert table.links_hint(path.encode()) == hint(DIRECTORY, 7), path
    for path in ("/x/f", "/x/links/f", "/link", "/y/x/link", "/x"):
        assert table.links_hint(path.encode()) == NEW, path
    # The table now has an entry for the file's directory, learnt from the link above it.
    assert table.links_find(table.links_key(b"/x/link/sub/deep")) == hint(DIRECTORY, 7)


def test_only_a_link_itself_is_known_of_what_lies_below_it(table: Any) -> None:
    """The table knows a directory below a link, but not the link itself. Files directly in this
    directory get its hint. Files in deeper directories could get a hint only from an entry for the
    link, which is missing. So the library must learn anew where their paths lead."""
    learn(table, "/x/link/sub", DIRECTORY, 7)
    assert table.links_hint(b"/x/link/sub/f") == hint(DIRECTORY, 7)
    assert table.links_hint(b"/x/link/sub/deep/f") == NEW


def test_a_link_in_a_directory_that_leads_elsewhere_counts(table: Any) -> None:
    learn(table, "/x", ELSEWHERE)
    assert table.links_hint(b"/x/link") == ELSEWHERE
    learn(table, "/x/link", DIRECTORY, 7)
    assert table.links_hint(b"/x/link") == hint(DIRECTORY, 7)
    learn(table, "/x/files", FILES)
    assert table.links_hint(b"/x/files/f") == FILES
    learn(table, "/x/files/link", DIRECTORY, 13)
    assert table.links_hint(b"/x/files/f") == FILES
    assert table.links_hint(b"/x/files/link") == FILES, "its directory says enough"


def test_a_directory_that_leads_elsewhere_is_looked_at_again(table: Any) -> None:
    assert table.links_due(10 * AGAIN) == 10
    learn(table, "/x", ELSEWHERE)
    hints = [table.links_hint(b"/x/f") for _ in range(10 * AGAIN)]
    assert hints.count(NEW) == 10 and hints.count(ELSEWHERE) == 10 * (AGAIN - 1)
    learn(table, "/x", FILES)
    assert {table.links_hint(b"/x/f") for _ in range(2 * AGAIN)} == {FILES}


# --- links outside a source -----------------------------------------------------------------------


@pytest.fixture
def served(table: Any, place: Place, tmp_path: Path) -> Iterator[Served]:
    """A session with one source, and links outside the source that lead into it."""
    root, tier, out = tmp_path / "data", tmp_path / "tier", tmp_path / "out"
    (root / "d" / "e").mkdir(parents=True)
    tier.mkdir(mode=0o700)
    (root / "f").write_text("f")
    (root / "d" / "g").write_text("g")
    (root / "d" / "e" / "h").write_text("h")
    (root / "in").symlink_to("d/e")
    (root / "up").symlink_to("../out/own")
    (root / "to_f").symlink_to("f")
    (out / "files").mkdir(parents=True)
    (out / "dir").symlink_to(root / "d")
    (out / "root").symlink_to(root)
    (out / "files" / "one").symlink_to(root / "f")
    (out / "own").write_text("own")
    one = Served(table, place, root, tier)
    cwd = Path.cwd()
    yield one
    os.chdir(cwd)
    one.end()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def opened(lib: Any, served: Served, path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        return bool(lib.links_learn_open(served.s, bytes(path), fd))
    finally:
        os.close(fd)


def known(lib: Any, path: Path) -> int:
    return int(lib.links_find(lib.links_key(bytes(path))))


def test_an_open_through_a_link_teaches_where_it_leads(
    table: Any, served: Served, out: Path
) -> None:
    """An open teaches the library one of three facts: the link and the file's directory lead into a
    source; the file's directory contains links to files of a source; or the file's directory leads
    elsewhere."""
    link = out / "dir"
    n = len(bytes(link))
    assert opened(table, served, link / "e" / "h")
    assert known(table, link) == known(table, link / "e") == hint(DIRECTORY, n)
    assert known(table, out) == NEW
    assert opened(table, served, out / "files" / "one")
    assert known(table, out / "files") == FILES
    assert not opened(table, served, out / "own")
    assert known(table, out) == ELSEWHERE
    assert not opened(table, served, Path("/etc/passwd"))
    assert known(table, Path("/etc")) == ELSEWHERE
    assert not opened(table, served, Path("/proc/self"))
    assert known(table, Path("/proc")) == NEW, "a directory may contain links"


def test_while_a_scan_goes_on_a_file_may_be_found_yet(
    table: Any, served: Served, out: Path
) -> None:
    """During a scan, a file of the source may not be in the catalog yet. If a program opens this
    file through a link, the library must not conclude that the link's directory leads
    elsewhere."""
    served.control.scanned = 0
    (served.root / "d" / "new").write_text("new")
    (out / "files" / "new").symlink_to(served.root / "d" / "new")
    assert opened(table, served, out / "files" / "new")
    assert known(table, out / "files") == NEW
    assert not opened(table, served, out / "own")
    assert known(table, out) == ELSEWHERE
    served.control.scanned = 1
    assert not opened(table, served, out / "files" / "new")
    assert known(table, out / "files") == ELSEWHERE


def test_a_look_or_a_list_teaches_of_a_directory(table: Any, served: Served, out: Path) -> None:
    """From a stat or a listing of a link, the library learns to which directory of a source the
    link leads. Slashes at the end of the path change nothing. From a stat, it learns nothing if the
    path leads to a file or outside all sources, or if the path's text already shows where it
    leads."""
    link = out / "dir"
    expected = hint(DIRECTORY, len(bytes(link)))
    for end in (b"", b"/", b"///"):
        table.links_forget()
        table.links_learn_stat(bytes(link) + end)
        assert known(table, link) == expected
        table.links_forget()
        fd = os.open(link, os.O_RDONLY)
        table.links_learn_listed(bytes(link) + end, fd)
        assert known(table, link) == expected
        os.close(fd)
    table.links_forget()
    for path in (out / "files" / "one", served.root / "d", out, Path("/proc/self")):
        table.links_learn_stat(bytes(path))
        assert known(table, path) == known(table, path.parent) == NEW
    assert not table.links_are_met()


def test_a_directory_is_entered_only_if_it_is_the_scanned_one(
    table: Any, served: Served, out: Path
) -> None:
    """A link led to a scanned directory. By now, the link may lead elsewhere, or another directory
    may be at the scanned directory's path. In both cases, the library forgets what it has learned
    about the link."""
    link = out / "dir"
    n = len(bytes(link))

    def enters(path: Path) -> int:
        learn(table, str(link), DIRECTORY, n)
        learn(table, str(path.parent), DIRECTORY, n)
        return int(table.links_enter_directory(served.s, bytes(path), n))

    assert enters(link / "e" / "h") == served.id("d")
    assert known(table, link) == known(table, link / "e") == hint(DIRECTORY, n)
    link.unlink()
    link.symlink_to(out / "files")
    assert enters(link / "e" / "h") == -1
    assert known(table, link) == known(table, link / "e") == NEW
    link.unlink()
    link.symlink_to(served.root / "f")
    assert enters(link / "h") == -1, "a file"
    link.unlink()
    assert enters(link / "h") == -1, "nothing"
    (served.root / "d").rename(out / "moved")
    link.symlink_to(out / "moved")
    assert enters(link / "h") == -1, "the directory is at another path"
    (served.root / "d").mkdir()
    assert enters(link / "h") == -1, "and another one at its own"


def test_a_file_is_entered_only_if_it_is_as_scanned(table: Any, served: Served, out: Path) -> None:
    version = ffi.new("uint32_t *", 99)

    def enters(name: str, follow: int = 1) -> int:
        path = bytes(out / "files" / name)
        return int(table.links_enter_file(served.s, AT_FDCWD, path, follow, version))

    served.entry("f").version = 6
    assert enters("one") == served.id("f") and version[0] == 6
    outside = table.where_outside()
    assert enters("one", 0) == outside, "the link itself"
    (out / "files" / "d").symlink_to(served.root / "d")
    (out / "files" / "own").symlink_to(out / "own")
    for name in ("d", "own", "none"):
        assert enters(name) == outside
    os.utime(served.root / "f", ns=(1, 1))
    assert enters("one") == outside
    # The directory's hint says that the directory contains links to files of a source, but its link
    # `own` leads to a file outside the source. After AGAIN lookups of this link, the library
    # removes the hint, and looks at the directory again.
    found = []
    for _ in range(2 * AGAIN):
        learn(table, str(out / "files"), FILES)
        assert enters("own") == outside
        found.append(known(table, out / "files"))
    assert found.count(NEW) == 2


# --- every spelling -------------------------------------------------------------------------------

INSIDE = ["d", "e", "f", "g", "h", "in", "to_f", ".", "", "none"]
NAMES = ["dir", "root", "files", "one", "own", "up", "..", *INSIDE]


def expected(served: Served, path: str, follow: int) -> int | None:
    """Returns the catalog's entry of the file to which the path leads according to the kernel, or
    None if there is no such entry."""
    try:
        os.stat(path) if follow else os.lstat(path)
    except OSError:
        return None
    parent, name = os.path.split(path.rstrip("/"))
    if not follow and not path.endswith("/") and name not in ("", ".", ".."):
        real = os.path.join(os.path.realpath(parent), name)
    else:
        real = os.path.realpath(path)
    root = str(served.root)
    if real != root and not real.startswith(f"{root}/"):
        return None
    found = served.id(real[len(root) + 1 :])
    return found if found >= 0 else None


def test_every_path_leads_where_the_kernel_leads(
    lib: Any, table: Any, served: Served, out: Path
) -> None:
    """The paths are absolute, relative to the working directory or relative to a descriptor, and
    may contain dots. They lead through links inside the source, and through links outside the
    sources as soon as the library knows these links. No path may lead to another file."""
    bases = {"root": served.root, "out": out, "d": served.root / "d"}

    def is_found(start: str, parts: list[str], is_learnt: bool) -> bool:
        """Returns whether the library must find the file. It need not find a file whose path leaves
        the source and comes back."""
        if start == "out":
            return is_learnt and parts[0] in ("dir", "root") and set(parts[1:]) <= set(INSIDE)
        return set(parts) <= set(INSIDE)

    @settings(max_examples=examples(250), deadline=None)
    @given(
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=5),
        st.sampled_from(["root", "out", "d"]),
        st.sampled_from(["absolute", "cwd", "descriptor"]),
        st.integers(0, 1),
        st.booleans(),
    )
    def check(parts: list[str], start: str, how: str, follow: int, is_learnt: bool) -> None:
        lib.links_forget()
        base, text = bases[start], "/".join(parts).lstrip("/") or "."
        whole = f"{base}/{text}"
        dir_fd, path = AT_FDCWD, whole
        if how == "descriptor":
            dir_fd, path = os.open(base, os.O_RDONLY), text
        elif how == "cwd":
            os.chdir(base)
            path = text
        entry = expected(served, whole, follow)
        if is_learnt:
            lib.where_locate(served.s, AT_FDCWD, b"x", 1)  # finds the working directory
            for name in ("dir", "root"):
                lib.links_learn_stat(bytes(out / name))
                lib.links_learn_stat(name.encode()) if how == "cwd" and start == "out" else None
            opened(lib, served, out / "files" / "one")
        found = {
            int(locate(served.s, dir_fd, path.encode(), follow))
            for locate in (lib.where_locate, lib.where_locate_in)
        }
        if follow:
            found.add(int(lib.where_locate_opened(served.s, dir_fd, path.encode())))
        assert entry is not None or max(found) < 0
        must = start != "out" or how != "descriptor"
        if entry is not None and must and is_found(start, parts, is_learnt):
            assert found == {entry}
        elif entry is not None:
            assert all(one in (entry, -1, -2) for one in found)
        if lib.where_leads_nowhere(dir_fd, path.encode()):
            assert max(found) < 0
        if dir_fd >= 0:
            os.close(dir_fd)

    check()


BEHIND = {
    "dir": ["", "/", "/.", "/e", "/g", "/e/h", "/e/", "/e/../g", "//e//h"],
    "root": ["", "/", "/d", "/d/e/h", "/in/h", "/in", "/to_f", "/f", "/d/../f", "/d/e"],
}


@pytest.mark.parametrize("follow", [0, 1])
def test_all_that_lies_behind_a_known_link_is_found(
    table: Any, served: Served, out: Path, follow: int
) -> None:
    os.chdir(out)
    for how in ("absolute", "cwd"):
        table.links_forget()
        table.where_locate(served.s, AT_FDCWD, b"x", 1)  # finds the working directory
        for link, rest in BEHIND.items():
            path = link if how == "cwd" else f"{out}/{link}"
            table.links_learn_stat(path.encode())
            for end in rest:
                entry = expected(served, f"{out}/{link}{end}", follow)
                found, found_in = (
                    int(locate(served.s, AT_FDCWD, f"{path}{end}".encode(), follow))
                    for locate in (table.where_locate, table.where_locate_in)
                )
                if entry is None:
                    assert max(found, found_in) < 0, (path, end)
                elif not follow and end == "/":
                    assert found in (entry, -1) and found_in in (entry, -1), (path, end)
                else:
                    assert found == entry, (path, end)
                    assert found_in == entry or (found_in < 0 and ".." in end), (path, end)


def test_a_directory_by_its_descriptor_is_the_one_that_was_opened(
    lib: Any, place: Place, tmp_path: Path, table: Any
) -> None:
    """Another directory may now have the name of the opened directory. If the opened directory was
    removed, the kernel reports its name with ` (deleted)` at the end. Another directory may have
    this longer name. The descriptor must not lead to these other directories."""
    root, tier = tmp_path / "data", tmp_path / "tier"
    for name in ("d", "gone", "gone (deleted)", "moved"):
        (root / name).mkdir(parents=True)
        (root / name / "f").touch()
    tier.mkdir(mode=0o700)
    served = Served(lib, place, root, tier)
    names = ("d", "gone", "moved", "d/f")
    fds = {name: os.open(root / name, os.O_RDONLY) for name in names}

    def locate(name: str) -> int:
        return int(lib.where_locate(served.s, fds[name], b"f", 1))

    for name in ("d", "gone", "moved"):
        assert locate(name) == served.id(f"{name}/f")
    assert locate("d/f") < 0, "no directory"
    (root / "gone" / "f").unlink()
    (root / "gone").rmdir()
    assert locate("gone") < 0
    (root / "moved").rename(tmp_path / "elsewhere")
    assert locate("moved") < 0
    (root / "moved").mkdir()
    assert locate("moved") < 0
    for fd in fds.values():
        os.close(fd)
    assert int(lib.where_locate(served.s, 999, b"f", 1)) < 0
    assert int(lib.where_locate(served.s, -1, b"f", 1)) < 0
    served.end()
