"""Tests path resolution against the kernel. If path resolution returns an entry, it is the entry of
the file that the kernel would open. If path resolution can follow every step of a path, and the
kernel finds a file at the path, path resolution finds this file too."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from csrc.known import OUTSIDE, UNKNOWN, Known
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import examples

DEEP = b"a/b/c/d/e"
LINKS = {
    "to_file": "a/f",
    "to_directory": "a/b",
    "to_directory_with_slash": "a/b/",
    "to_itself": ".",
    "a/up": "..",
    "a/b/up_twice": "../..",
    "a/b/through_link": "../../to_directory/f",
    "dots_after_link": "to_directory/../f",
    "two_steps": "to_file",
    "three_steps": "a/up/two_steps",
    "loop1": "loop2",
    "loop2": "loop1",
    "self_loop": "self_loop",
    "dangling": "a/nothing",
    "dangling_directory": "nothing/f",
    "through_a_file": "a/f/g",
    "file_with_slash": "a/f/",
    "out": "../outside/o",
    "out_directory": "../outside",
    "out_and_back": "../outside/in/f",
    "up_and_down_again": "../source/a/f",
    "not_the_source": "../source_too/f",
}
FILES = ("f", "a/f", "a/b/f", "a/b/c/f", "a/b/c/d/e/f", "..f", "...", "a/.f", "w/ x")
NAMES = [
    *("a", "b", "c", "d", "e", "f", "w", " x", ".f", "..f", "...", "nothing", "outside", "o", "in"),
    *("source", "source_too", "alias", "link_outside", "by_link"),
    *{part for link in LINKS for part in link.split("/")},
]


def build(top: Path) -> tuple[Path, Path]:
    root, outside, other = top / "source", top / "outside", top / "source_too"
    for directory in (root / os.fsdecode(DEEP), root / "w", root / "empty", outside, other):
        directory.mkdir(parents=True)
    for name in FILES:
        (root / name).write_text(name)
    for place in (outside / "o", outside / "f", other / "f"):
        place.write_text(str(place))
    for name, target in LINKS.items():
        (root / name).symlink_to(target)
    (root / "absolute").symlink_to(root / "a/f")
    (root / "absolute_directory").symlink_to(f"{root}/a/./b//")
    (root / "absolute_out").symlink_to(outside / "o")
    (root / "by_alias").symlink_to(top / "alias" / "a/f")
    (root / "absolute_dots").symlink_to(f"{outside}/../source/a/f")
    (outside / "in").symlink_to(root / "a")
    (outside / "in_by_dots").symlink_to("../source/a/b")
    (top / "alias").symlink_to(root)
    (top / "by_link").symlink_to(top)
    (root / "chain0").symlink_to("a/f")
    for i in range(1, 45):
        (root / f"chain{i}").symlink_to(f"chain{i - 1}")
    return root, top / "alias"


class Tree:
    def __init__(self, top: Path) -> None:
        self.top = Path(os.path.realpath(top))
        self.root, self.alias = build(self.top)
        self.known = Known(self.root, aliases=(self.alias,))
        self.bases = [self.top, Path("/"), self.top / "outside", self.top / "source_too"]
        self.bases += [Path(d) for d, _, _ in os.walk(self.root)]

    def truth(self, path: bytes, base: bytes, follow: bool) -> tuple[bytes, int] | None:
        """Returns the canonical path and the mode of the file that the kernel opens at this path;
        None if the open fails."""
        here = os.open(base or b"/", os.O_PATH)
        try:
            fd = os.open(path, os.O_PATH | (0 if follow else os.O_NOFOLLOW), dir_fd=here)
        except OSError:
            return None
        finally:
            os.close(here)
        try:
            return os.fsencode(os.readlink(f"/proc/self/fd/{fd}")), os.fstat(fd).st_mode
        finally:
            os.close(fd)

    def expected(self, path: bytes, base: bytes, follow: bool) -> int:
        """Returns the entry of the file that the kernel opens; OUTSIDE if it opens no file of the
        source."""
        found = self.truth(path, base, follow)
        root = os.fsencode(self.root) + b"/"
        if not found or not (found[0] + b"/").startswith(root):
            return -1
        return self.known.find(found[0][len(root) :])

    def check(self, path: bytes, base: bytes, follow: bool) -> int:
        """Resolves the path and returns its entry. If an entry is found, it must be the entry of
        the file that the kernel opens."""
        answer = self.known.resolve(path, base=base, follow=follow)
        if answer.entry >= 0:
            assert answer.entry == self.expected(path, base, follow), (path, base, follow)
        else:
            assert answer.entry in (OUTSIDE, UNKNOWN)
        if answer.entry == UNKNOWN:
            # The daemon gets this path, so it must be a plain path relative to the source.
            assert answer.path and b"//" not in answer.path and not answer.path.startswith(b"/")
        if path.startswith(b"/") and self.known.is_outside(path):
            assert answer.entry == OUTSIDE, path
        return answer.entry


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree(tmp_path_factory.mktemp("paths"))


component = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from([".", "..", "", "..", "a", "source"]),
    st.integers(0, 44).map(lambda i: f"chain{i}"),
)


@st.composite
def any_path(draw: st.DrawFn) -> tuple[str, str]:
    """Draws a path as (start, rest). `start` is "relative" or a key of the prefixes in spell()."""
    start = draw(
        st.sampled_from(["root", "alias", "top", "slash", "by_link", "relative", "relative"])
    )
    parts = draw(st.lists(component, min_size=1, max_size=7))
    return start, "/".join(parts) + draw(st.sampled_from(["", "", "", "/", "/.", "//", "/.."]))


def spell(tree: Tree, start: str, rest: str, base: int) -> tuple[bytes, bytes]:
    """Returns the path and, if the path is relative, the working directory to resolve it in."""
    prefix = {
        "root": tree.root,
        "alias": tree.alias,
        "top": tree.top,
        "by_link": tree.top / "by_link" / "source",
        "slash": "",
    }
    if start == "relative" and not rest.startswith("/"):
        return os.fsencode(rest), os.fsencode(tree.bases[base % len(tree.bases)])
    return os.fsencode(f"{prefix.get(start, tree.root)}/{rest}"), b""


@settings(max_examples=examples(400), deadline=None)
@given(any_path(), st.integers(0, 40), st.booleans())
def test_never_another_file(tree: Tree, path: tuple[str, str], base: int, follow: bool) -> None:
    tree.check(*spell(tree, *path, base), follow)


def detours(place: Path) -> list[str]:
    """Returns path prefixes that lead from a directory back to itself, some through its
    subdirectories. Each prefix is empty or ends with a slash."""
    below = [d.name for d in place.iterdir() if d.is_dir() and not d.is_symlink()]
    return ["", "./", "/", ".//./", *(f"{d}/../" for d in below), *(f"{d}/./..//" for d in below)]


@settings(max_examples=examples(250), deadline=None)
@given(
    name=st.sampled_from(FILES),
    start=st.sampled_from(["", "alias", "relative", "to_itself/to_itself", "a/b/up_twice/a/up"]),
    base=st.integers(0, 40),
    data=st.data(),
)
def test_finds_what_it_can_see(
    tree: Tree, name: str, start: str, base: int, data: st.DataObject
) -> None:
    text, place = "", tree.root
    for part in name.split("/"):
        text += data.draw(st.sampled_from(detours(place))) + part + "/"
        place = place / part
    text = text.rstrip("/")
    working = tree.bases[base % len(tree.bases)]
    if start == "relative":
        spelled = f"{os.path.relpath(tree.root, working)}/{text}"
    else:
        spelled = f"{tree.alias if start == 'alias' else tree.root / start}/{text}"
    entry = tree.check(os.fsencode(spelled), os.fsencode(working), True)
    assert entry == tree.known.find(os.fsencode(name)) >= 0, spelled


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("to_file", "a/f"),
        ("two_steps", "a/f"),
        ("three_steps", "a/f"),
        ("to_directory/f", "a/b/f"),
        ("to_directory_with_slash/f", "a/b/f"),
        ("a/b/through_link", "a/b/f"),
        ("absolute", "a/f"),
        ("absolute_directory/c/f", "a/b/c/f"),
        ("by_alias", "a/f"),
        ("absolute_dots", "a/f"),
        ("up_and_down_again", "a/f"),
        ("chain19", "a/f"),
    ],
)
def test_links_inside_lead_to_their_file(tree: Tree, path: str, name: str) -> None:
    found = [
        tree.check(os.fsencode(f"{start}/{path}"), base, True)
        for start, base in ((tree.root, b""), (".", os.fsencode(tree.root)))
    ]
    assert found == [tree.known.find(os.fsencode(name))] * 2


@pytest.mark.parametrize(
    "path",
    [
        *(
            "loop1",
            "self_loop",
            "dangling",
            "dangling_directory",
            "through_a_file",
            "a/f/",
            "a/f/.",
        ),
        *("file_with_slash", "a/f/..", "a/nothing/../f", "to_file/", "to_file/../f", "chain40"),
        *("out", "out_directory/o", "out_and_back", "not_the_source", "a/f/b"),
        # The library does not resolve a `..` after a link. It leaves such paths to the source.
        *("to_directory/../f", "dots_after_link"),
    ],
)
def test_ways_that_lead_nowhere_or_out_give_no_entry(tree: Tree, path: str) -> None:
    assert tree.check(os.fsencode(f"{tree.root}/{path}"), b"", True) < 0


def test_a_last_link_is_itself_when_not_followed(tree: Tree) -> None:
    root = os.fsencode(tree.root)
    for name in ("to_file", "loop1", "dangling", "out", "to_directory"):
        raw = os.fsencode(name)
        assert tree.check(root + b"/" + raw, b"", False) == tree.known.find(raw)
    assert tree.check(root + b"/to_directory/", b"", False) == tree.known.find(b"a/b")
    assert tree.check(root + b"/to_directory/f", b"", False) == tree.known.find(b"a/b/f")


@pytest.mark.parametrize(
    ("path", "is_outside"),
    [
        ("/usr/lib/gcc/../../include/stdio.h", True),
        ("{top}/source/../outside/o", True),
        ("{root}/to_directory/../../..", True),
        ("{root}er/../other", True),
        ("/..", True),
        ("{top}/outside/../source/a/f", False),
        ("{root}/a/../../source", False),
        ("/../{root}//a/.", False),
        ("{alias}/../alias/f", False),
    ],
)
def test_the_letters_of_a_path_say_whether_it_may_lead_here(
    tree: Tree, path: str, is_outside: bool
) -> None:
    spelled = path.format(root=tree.root, top=tree.root.parent, alias=tree.alias)
    spelled = spelled.replace("/source", f"/{tree.root.name}")
    spelled = spelled.replace("../alias", f"../{Path(tree.alias).name}")
    assert tree.known.is_outside(os.fsencode(spelled)) == is_outside


@pytest.mark.parametrize("filler", ["/", "/.", "/a/.."])
def test_a_path_too_long_for_the_kernel_gives_no_entry(tree: Tree, filler: str) -> None:
    root = str(tree.root)
    for length in (4094, 4095, 4096, 4097, 9000):
        middle = (filler * length)[: (length - len(root) - 4) // len(filler) * len(filler)]
        path = os.fsencode(f"{root}{middle}/a/f")
        kernel = tree.expected(path, b"", True)
        assert tree.check(path, b"", True) == (kernel if len(path) < 4096 else -1), len(path)
        assert (kernel >= 0) == (len(path) < 4096)


def test_a_link_whose_target_is_as_long_as_there_is_room(tmp_path: Path) -> None:
    """The path to a link, the link's target and the rest of the path lie in one buffer. The link
    must be followed if all three fit into the buffer, and must not be followed otherwise."""
    root = Path(os.path.realpath(tmp_path)) / "r"
    (root / "d" / "a").mkdir(parents=True)
    (root / "d" / "a" / "f").touch()
    lengths = range(4090 - len(f"{root}/d") - 20, 4096)
    for n in lengths:
        dots = "./" * ((n - 1) // 2) + ("/" if n % 2 == 0 else "")
        (root / "d" / str(n)).symlink_to(dots + "a")
    known = Known(root)
    file, found = known.find(b"d/a/f"), {}
    for n in lengths:
        found[n] = known.resolve(os.fsencode(f"{root}/d/{n}/f")).entry
    longest = max(n for n in lengths if found[n] == file)
    assert all(found[n] == (file if n <= longest else OUTSIDE) for n in lengths)
    assert longest == 4096 - len(f"{root}/d") - len("/f") - 3


def test_what_changed_is_no_longer_walked_through(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    root = os.fsencode(tree.root)
    for name in ("to_file", "to_directory"):
        link = tree.root / name
        tree.known.mark_changed(link)
        link.unlink()
        link.symlink_to("w")
    assert tree.check(root + b"/to_file", b"", True) < 0
    assert tree.check(root + b"/to_directory/f", b"", True) < 0
    assert tree.check(root + b"/two_steps", b"", True) < 0
    # a/b was a directory and is a link now, so `a/b/..` is another directory.
    moved = tree.root / "a/b"
    tree.known.mark_changed(moved)
    moved.rename(tree.root / "a/elsewhere")
    moved.symlink_to(tree.top / "outside")
    assert tree.check(root + b"/a/b/../f", b"", True) < 0


def is_odd(path: str) -> bool:
    parts = path.split("/")
    return path not in ("", "/") and any(p in ("", ".", "..") for p in parts[path[0] == "/" :])


@given(st.text(alphabet="/.ab", max_size=12), st.integers(0, 40), st.integers(0, 40))
def test_odd_paths_are_seen(text: str, before: int, behind: int) -> None:
    """Empty names, `.` and `..` in a path are found. They are also found at any place in a longer
    path, although the search examines 16 bytes at a time."""
    from monarch_py.native import lib

    for path in (text, before * "a" + text + behind * "b"):
        assert bool(lib.monarch_is_odd(path.encode(), len(path))) == is_odd(path)
        assert bool(lib.monarch_may_go_up(path.encode())) == (".." in path)


@given(
    st.sampled_from(
        ["/", "/s", "/s/", "/s/a", "/sa", "/t/u", "/t/uv", "/al", "/al/x", "/alias", "s"]
    ),
    st.text(alphabet="/.sual", max_size=6),
)
def test_prefix_is_a_whole_component(start: str, rest: str) -> None:
    known = Known()
    for i, (path, alias) in enumerate([(b"/s", b"/al"), (b"/t/u", b"")]):
        slot = known.control.source[i]
        slot.path, slot.path_len, slot.alias, slot.alias_len = path, len(path), alias, len(alias)
    known.control.sources = 2
    whole = start + rest
    expected: tuple[int, bytes | None] = (-1, None)
    for prefix, number in (("/t/u", 1), ("/al", 0), ("/s", 0)):
        if whole == prefix or whole.startswith(prefix + "/"):
            expected = (number, whole[len(prefix) + 1 :].encode())
    assert known.prefix(whole.encode()) == expected


def test_entries_have_the_kinds_of_the_tree(tree: Tree) -> None:
    for name in (*LINKS, *FILES, "a", "a/b", "empty"):
        mode = (tree.root / name).lstat().st_mode
        kind = tree.known.kind(tree.known.find(os.fsencode(name)))
        assert kind == [stat.S_ISREG(mode), stat.S_ISDIR(mode), stat.S_ISLNK(mode)].index(True)
