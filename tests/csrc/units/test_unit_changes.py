"""Tests which files count as changed after a call of a program."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import ffi
from csrc.units.place import Place, open_descriptors
from csrc.units.serving import Served
from support.mounts import Mounts

from monarch_py.native import ffi as native

AT_FDCWD = -100
FILES = ["", "d", "d/e", "d/e/h", "d/g", "d2", "d2/g", "f", "to_f", "empty"]
BELOW_D = {"d", "d/e", "d/e/h", "d/g"}


class Changing:
    """Acts as a program that changes files of a source."""

    def __init__(self, lib: Any, served: Served) -> None:
        self.lib, self.served, self.root = lib, served, served.root

    def changed(self) -> set[str]:
        """Returns the paths of the catalog's files that count as changed. From then on, no file
        counts as changed."""
        found = {
            path
            for path in FILES
            if self.lib.changes_has_changed(self.served.s, self.served.id(path))
        }
        clients = self.served.clients
        for field in ("changed", "changed_coarse"):
            memory = native.buffer(native.addressof(clients, field))
            memory[:] = bytes(len(memory))
        return found

    def call(self, name: str, path: Path | str, *more: int, dir_fd: int = AT_FDCWD) -> set[str]:
        getattr(self.lib, f"changes_{name}")(dir_fd, os.fsencode(path), *more)
        return self.changed()

    def to_change(self, path: Path, follow: int) -> set[str]:
        """Prepares a call that changes the file at the path. Checks that the call is to be made
        with the same path, and returns which files count as changed."""
        out = ffi.new("char[4096]")
        self.lib.changes_path_to_change(AT_FDCWD, bytes(path), follow, out)
        assert ffi.string(out) == bytes(path)
        return self.changed()


@pytest.fixture
def changing(lib: Any, place: Place, tmp_path: Path) -> Iterator[Changing]:
    root, tier = tmp_path / "data", tmp_path / "tier"
    (root / "d" / "e").mkdir(parents=True)
    (root / "d2").mkdir()
    (root / "empty").mkdir()
    tier.mkdir(mode=0o700)
    for path in ("f", "d/g", "d/e/h", "d2/g"):
        (root / path).write_text("content")
    (root / "to_f").symlink_to("f")
    lib.links_forget()
    lib.changes_are_guarded()  # forgets which descriptors tests in other files have opened
    before = open_descriptors()
    served = Served(lib, place, root, tier)
    cwd = Path.cwd()
    yield Changing(lib, served)
    os.chdir(cwd)
    lib.links_forget()
    assert lib.changes_are_guarded()
    assert open_descriptors() <= before
    served.end()


@pytest.mark.parametrize("call", ["path", "file", "known", "tree"])
def test_a_change_is_of_the_file_at_the_path(changing: Changing, call: str) -> None:
    """If the path is that of a link, `follow` decides whether the link itself or the file to which
    it leads counts as changed. If a directory is changed, the files below it do not count as
    changed, unless the directory is moved."""
    root = changing.root
    more = () if call == "tree" else (1,)
    nothing: set[str] = set()
    for path in ("f", "d/g", "d/e/h"):
        assert changing.call(call, root / path, *more) == ({path} if call != "known" else nothing)
    expected = {"path": {"d"}, "file": {"d"}, "known": nothing, "tree": BELOW_D}[call]
    assert changing.call(call, root / "d", *more) == expected
    if call == "tree":
        assert changing.call(call, root) == set(FILES)
        assert changing.call(call, root / "to_f") == {"to_f"}
    elif call != "known":
        assert changing.call(call, root / "to_f", 1) == {"f"}
        assert changing.call(call, root / "to_f", 0) == {"to_f"}
    assert changing.call(call, root / "none", *more) == nothing
    assert changing.call(call, root.parent, *more) == nothing


@pytest.mark.parametrize("call", ["path", "known", "tree", "to_change"])
def test_what_another_process_has_replaced_counts_as_changed(changing: Changing, call: str) -> None:
    """Another process renames or replaces a file or a directory that is in the catalog. After the
    test process's next call on the path, the file counts as changed. Its directory, whose listing
    still contains the file, counts as changed too. For a directory, all files below it count as
    changed too."""
    root = changing.root

    def change(path: str) -> set[str]:
        if call == "to_change":
            return changing.to_change(root / path, 1)
        return changing.call(call, root / path, *(() if call == "tree" else (1,)))

    (root / "f").rename(root / "old")
    assert change("f") == {"", "f"}, "it is gone"
    (root / "f").write_text("new")
    assert change("f") == {"", "f"}, "another file is there"
    renames = changing.served.clients.renames
    (root / "d").rename(root / "moved")
    assert change("d") == {"", *BELOW_D}
    assert changing.served.clients.renames > renames
    (root / "d").mkdir()
    assert change("d") == {"", *BELOW_D}
    assert change("d2/g") == {"d2/g"} if call != "known" else not change("d2/g")


@pytest.mark.parametrize("what", ["alias", "link"])
def test_a_link_to_a_source_is_not_the_source(
    changing: Changing, tmp_path: Path, what: str
) -> None:
    """A change of the link itself, as by `chown -h`, changes no file of the source. A change
    through the link is a change of the directory to which the link leads. The directory's
    attributes matter to all files below it, so path_to_change marks these files too."""
    link, target = (tmp_path / "alias", "") if what == "alias" else (tmp_path / "link", "d")
    link.symlink_to(changing.root / target)
    if what == "alias":
        source = changing.served.control.source[0]
        source.alias, source.alias_len = bytes(link), len(bytes(link))
    else:
        changing.lib.links_learn_stat(bytes(link))
        assert changing.lib.links_are_met()
    for _ in range(2):
        assert changing.to_change(link, 0) == set()
        assert changing.call("path", link, 0) == set()
        assert changing.call("known", link, 0) == set()
        assert changing.call("tree", link) == set()
        assert changing.to_change(link, 1) == (BELOW_D if target else set(FILES))
        assert changing.call("path", link, 1) == {target}
        # The path may be relative to a working directory in which the link lies.
        os.chdir(tmp_path)
        assert changing.to_change(Path(link.name), 0) == set()
    assert changing.to_change(link / "e" / "h" if target else link / "f", 1) == {
        "d/e/h" if target else "f"
    }


def test_a_source_may_be_mounted_at_its_alias(changing: Changing, mounts: Mounts) -> None:
    """In a container, the alias of a source may be a mount instead of a link. The kernel then
    reports paths below the alias."""
    alias = mounts.bind("alias", changing.root)
    source = changing.served.control.source[0]
    source.alias, source.alias_len = bytes(alias), len(bytes(alias))
    (changing.root / "d" / "g").rename(changing.root / "d" / "old")
    (changing.root / "d" / "g").write_text("new")
    with (alias / "d" / "g").open("r+b") as file:
        changing.lib.changes_made(file.fileno(), bytes(alias / "d" / "g"), 0)
    assert changing.changed() == {"d", "d/g"}


@pytest.mark.parametrize("call", ["path", "known", "tree", "to_change"])
def test_a_change_through_a_link_that_nobody_has_used_is_one_of_the_catalogs_file(
    changing: Changing, tmp_path: Path, call: str
) -> None:
    """Another process has replaced a file of the source. This process changes the file by a path
    through a link that the library does not know yet. So the library asks the kernel where the path
    leads."""
    (tmp_path / "link").symlink_to(changing.root / "d")
    (changing.root / "d" / "g").rename(changing.root / "d" / "old")
    path = tmp_path / "link" / "g"
    path.write_text("new")
    for _ in range(2):
        if call == "to_change":
            assert changing.to_change(path, 1) == {"d", "d/g"}
        else:
            assert changing.call(call, path, *(() if call == "tree" else (1,))) == {"d", "d/g"}
        assert not changing.lib.links_are_met()
        os.chdir(tmp_path)
    dir_fd = os.open(tmp_path, os.O_RDONLY)
    more = () if call == "tree" else (1,)
    if call != "to_change":
        assert changing.call(call, "link/g", *more, dir_fd=dir_fd) == {"d", "d/g"}
    os.close(dir_fd)


def test_a_bad_path_is_the_kernels_to_refuse(changing: Changing) -> None:
    """The library does not read a path whose address is NULL, and leaves the error to the
    kernel."""
    lib = changing.lib
    lib.changes_path_to_change(AT_FDCWD, ffi.NULL, 1, ffi.new("char[4096]"))
    for call in (lib.changes_path, lib.changes_file, lib.changes_known):
        call(AT_FDCWD, ffi.NULL, 1)
    lib.changes_tree(AT_FDCWD, ffi.NULL)
    lib.changes_names(AT_FDCWD, ffi.NULL)
    assert changing.changed() == set()


def test_a_name_of_a_copys_descriptor_leads_to_its_file(changing: Changing) -> None:
    lib, out = changing.lib, ffi.new("char[4096]")
    copy = changing.served.publish("d/g", b"content")
    with copy.open("rb") as file, (changing.root / "f").open("rb") as other:
        fd = file.fileno()
        for place in ("/proc/self/fd", "/dev/fd", f"/proc/{os.getpid()}/fd"):
            assert lib.changes_names_copy(f"{place}/{fd}".encode(), out) == 1
            assert ffi.string(out) == bytes(changing.root / "d" / "g")
            for path in (f"{place}/{other.fileno()}", f"{place}/999", place):
                assert lib.changes_names_copy(path.encode(), out) == 0
        for own in (copy, changing.root / "d" / "g", Path("f"), Path("/")):
            assert lib.changes_names_copy(bytes(own), out) == 0
        assert lib.changes_names_copy(ffi.NULL, out) == 0
        # /dev/null is no copy and is in no source, so no file of the catalog counts as changed.
        with Path("/dev/null").open("w") as null:
            lib.changes_made(null.fileno(), b"/dev/null", 1)
            lib.changes_made(null.fileno(), b"/dev/null", 0)
            assert not lib.changes_is_copy(null.fileno(), ffi.NULL)
        assert lib.changes_is_copy(fd, ffi.NULL) == 1
    assert changing.changed() == set()


def test_a_name_that_comes_or_goes_changes_its_directory(changing: Changing) -> None:
    root = changing.root
    for path, directory in (
        ("new", ""), ("d/new", "d"), ("d/e/new", "d/e"), ("d/e/new/", "d/e"), ("d/e//new//", "d/e"),
        ("d/e", "d"), ("d/none/new", None),
    ):  # fmt: skip
        expected = set() if directory is None else {directory}
        assert changing.call("names", f"{root}/{path}") == expected, path
        assert changing.call("names_of", f"{root}/{path}") == expected, path
        dir_fd = os.open(root, os.O_RDONLY)
        assert changing.call("names", path, dir_fd=dir_fd) == expected, path
        os.close(dir_fd)
    os.chdir(root / "d")
    assert changing.call("names", "new") == {"d"}
    assert changing.call("names", "./new") == {"d"}
    assert changing.call("names", "../new") == {""}
    for path in ("", "/", "/none", "x" * 4096):
        assert changing.call("names", path) == set()
        assert changing.call("names_of", path) == set()
    long = f"{root}/d" + "/" * (4095 - len(f"{root}/dn")) + "n"
    assert changing.call("names", long) == {"d"}
    assert changing.call("names", f"{root}/d/" + "/" * (4095 - len(f"{root}/d")) + "n") == set()


def test_an_open_file_changes_as_itself(changing: Changing) -> None:
    """A file that is changed through a descriptor counts as changed even if it has another name by
    now. If an open has created a file, the file's directory counts as changed."""
    lib, root = changing.lib, changing.root
    out = ffi.new("char[4096]")
    with (root / "d" / "g").open("r+b") as file:
        lib.changes_fd(file.fileno())
        assert changing.changed() == {"d/g"}
        assert not lib.changes_fd_to_change(file.fileno(), out)
        assert changing.changed() == {"d/g"}
        (root / "d" / "g").rename(root / "d" / "old")
        (root / "d" / "g").write_text("new")
        lib.changes_fd(file.fileno())
        assert changing.changed() == {"d/g"}
    directory = os.open(root / "d", os.O_RDONLY)
    lib.changes_fd(directory)
    assert changing.changed() == set()
    os.close(directory)
    with (root / "d" / "new").open("w") as file:
        for created, expected in ((1, {"d"}), (0, set())):
            lib.changes_made(file.fileno(), bytes(root / "d" / "new"), created)
            assert changing.changed() == expected
    with (root / "d" / "g").open("w") as file:
        lib.changes_made(file.fileno(), bytes(root / "d" / "g"), 0)
        assert changing.changed() == {"d", "d/g"}, "the catalog's file has been replaced"


def test_a_file_outside_may_come_into_the_source(changing: Changing, tmp_path: Path) -> None:
    """When a file outside all sources is opened for writing, the library remembers that the file is
    outside. It forgets this when this process changes a name, for example that of a link: the path
    may then lead into a source."""
    lib, root, link = changing.lib, changing.root, tmp_path / "link"
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "g").write_text("new")
    link.symlink_to(tmp_path / "outside")
    for _ in range(2):
        with (link / "g").open("r+b") as file:
            lib.changes_made(file.fileno(), bytes(link / "g"), 0)
        assert changing.changed() == set()
    (tmp_path / "outside" / "g").rename(root / "d" / "g")  # a process without the library
    link.unlink()
    link.symlink_to(root / "d")
    lib.changes_names(AT_FDCWD, bytes(link))
    with (link / "g").open("r+b") as file:
        lib.changes_made(file.fileno(), bytes(link / "g"), 0)
    assert changing.changed() == {"d", "d/g"}


def test_a_copy_changes_as_its_file(changing: Changing) -> None:
    """A call that would change a copy through its descriptor is made with the path of the copy's
    file instead. If another file has that path by now, the call fails."""
    lib, root = changing.lib, changing.root
    out = ffi.new("char[4096]")
    copy = changing.served.publish("d/g", b"content")
    with copy.open("rb") as file:
        fd = file.fileno()
        for call in (lib.changes_is_copy, lib.changes_fd_to_change):
            assert call(fd, out) == 1 and ffi.string(out) == bytes(root / "d" / "g")
            expected = {"d/g"} if call == lib.changes_fd_to_change else set()
            assert changing.changed() == expected
        lib.changes_path_to_change(AT_FDCWD, f"/proc/self/fd/{fd}".encode(), 1, out)
        assert ffi.string(out) == bytes(root / "d" / "g")
        assert changing.changed() == {"d/g"}
        (root / "d" / "g").rename(root / "d" / "old")
        for _ in range(2):
            assert lib.changes_is_copy(fd, out) == 1 and ffi.string(out) == b""
            (root / "d" / "g").write_text("content")
    with (root / "d" / "old").open("rb") as file:
        assert not lib.changes_is_copy(file.fileno(), out)


def named(changing: Changing, call: str, path: str, to: str = "", *, is_at: bool) -> set[str]:
    """Makes the call, checks that it succeeds, and returns which files count as changed. If `is_at`
    is true, each name is relative to a descriptor of its directory; otherwise, it is an absolute
    path."""
    root = changing.root
    dir_fd = todir = AT_FDCWD
    names = [f"{root}/{path}", f"{root}/{to}"]
    if is_at:
        dir_fd, todir = (os.open((root / one).parent, os.O_RDONLY) for one in (path, to or "f"))
        names = [Path(one).name for one in (path, to)]
    try:
        done = changing.lib.names_call(
            call.encode(), dir_fd, names[0].encode(), todir, names[1].encode()
        )
        assert done == 0, os.strerror(-done)
    finally:
        for fd in {dir_fd, todir} - {AT_FDCWD}:
            os.close(fd)
    return changing.changed()


@pytest.mark.parametrize("is_at", [False, True])
def test_new_names_change_their_directory(changing: Changing, is_at: bool) -> None:
    root = changing.root
    for call, kind in (
        ("mkdir", stat.S_IFDIR | 0o750), ("mkfifo", stat.S_IFIFO | 0o640),
        ("xmknod", stat.S_IFIFO | 0o640),
        ("mknod", stat.S_IFREG | 0o640), ("symlink", stat.S_IFLNK | 0o777),
    ):  # fmt: skip
        assert named(changing, call, f"d/e/{call}", is_at=is_at) == {"d/e"}, call
        assert (root / "d" / "e" / call).lstat().st_mode == kind
    if not is_at:
        assert named(changing, "mkdtemp", "d/made", is_at=False) == {"d"}
        assert len([one for one in os.listdir(root / "d") if one.startswith("made")]) == 1
    assert named(changing, "link", "d/g", "d2/new", is_at=is_at) >= {"d2"}
    assert os.path.samefile(root / "d" / "g", root / "d2" / "new")


@pytest.mark.parametrize("is_at", [False, True])
def test_a_link_is_one_of_the_file_or_of_the_link(changing: Changing, is_at: bool) -> None:
    root = changing.root
    assert named(changing, "link", "to_f", "d2/link", is_at=is_at) == {"to_f", "d2"}
    assert (root / "d2" / "link").is_symlink()
    assert named(changing, "link through", "to_f", "d2/file", is_at=is_at) == {"f", "d2"}
    assert (root / "d2" / "file").stat().st_nlink == 2


@pytest.mark.parametrize("is_at", [False, True])
def test_a_name_that_goes_changes_its_file_and_directory(changing: Changing, is_at: bool) -> None:
    root = changing.root
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "f").touch()
    assert named(changing, "unlink", "../outside/f", is_at=is_at) == set()
    assert not (outside / "f").exists()
    assert named(changing, "unlink", "d/g", is_at=is_at) == {"d/g", "d"}
    assert named(changing, "unlink", "d/e/h", is_at=is_at) == {"d/e/h", "d/e"}
    assert named(changing, "rmdir", "d/e", is_at=is_at) == {"d/e", "d"}
    if not is_at:
        assert named(changing, "remove", "d2/g", is_at=False) == {"d2/g", "d2"}
        assert named(changing, "remove", "d2", is_at=False) == {"d2", ""}


@pytest.mark.parametrize("is_at", [False, True])
def test_a_name_that_moves_changes_all_that_moves_with_it(changing: Changing, is_at: bool) -> None:
    root = changing.root
    assert named(changing, "rename", "f", "d2/f", is_at=is_at) == {"f", "", "d2"}
    assert named(changing, "rename", "d", "d3", is_at=is_at) == {*BELOW_D, ""}
    assert named(changing, "rename", "d3", "d", is_at=is_at) == {*BELOW_D, ""}
    assert named(changing, "rename", "d/g", "d2/g", is_at=is_at) == {"d/g", "d", "d2/g", "d2"}
    assert named(changing, "exchange", "d/e", "d2", is_at=is_at) == {
        "d/e", "d/e/h", "d2", "d2/g", "d", "",
    }  # fmt: skip
    assert (root / "d2" / "h").exists() and (root / "d" / "e" / "g").exists()


@pytest.mark.parametrize("is_at", [False, True])
@pytest.mark.parametrize("call", ["rename", "exchange"])
def test_what_the_daemon_learns_during_a_rename_changes_too(
    changing: Changing, call: str, is_at: bool
) -> None:
    changing.lib.names_add_meanwhile(changing.served.s, 1)
    try:
        to = "d2" if call == "exchange" else "empty"
        found = named(changing, call, "d", to, is_at=is_at)
    finally:
        changing.lib.names_add_meanwhile(changing.served.s, 0)
    assert found == {"", *BELOW_D} | ({"d2", "d2/g"} if call == "exchange" else {"empty"})


def test_a_link_to_a_file_that_was_replaced_changes_the_catalogs_file(changing: Changing) -> None:
    """Another process has replaced the file f, and this process makes a link to the new file. The
    catalog's file f then counts as changed."""
    (changing.root / "f").rename(changing.root / "old")
    (changing.root / "f").write_text("new")
    for is_at, name in ((True, "one"), (False, "other")):
        assert named(changing, "link", "f", f"d2/{name}", is_at=is_at) == {"", "f", "d2"}


def test_a_socket_is_a_name(changing: Changing) -> None:
    """A bind of a socket to a path creates a name, so the directory of this name counts as changed.
    An abstract address, which begins with a NUL, does not name a file. Neither does an address of
    another family. The kernel refuses a bad address."""
    os.chdir(changing.root / "d")
    family = socket.AF_UNIX.to_bytes(2, "little")
    for address, expected in (
        (family + b"sock", {"d"}), (family + b"sock2\0", {"d"}), (family + b"e/sock\0\0", {"d/e"}),
        (family + b"\0sock", set()), (family, set()), (family + b"s" * 108, {"d"}),
    ):  # fmt: skip
        with socket.socket(socket.AF_UNIX) as one:
            assert changing.lib.names_bind(one.fileno(), address, len(address)) == 0
        assert changing.changed() == expected, address
    with socket.socket(socket.AF_UNIX) as one:
        assert changing.lib.names_bind(one.fileno(), ffi.NULL, 10) == -errno.EFAULT
        assert changing.lib.names_bind(one.fileno(), family + b"sock\0", 7) == -errno.EADDRINUSE
    with socket.socket(socket.AF_INET) as one:
        address = socket.AF_INET.to_bytes(2, "little") + bytes(14)
        assert changing.lib.names_bind(one.fileno(), address, 16) == 0
    assert changing.changed() == set()
