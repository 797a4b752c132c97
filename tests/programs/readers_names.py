"""Readers that open files by unusual names, and readers of attributes and errors."""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from reader_kit import Transcript, files_of, mixed_files, reader, regular_files


@contextmanager
def _directory(path: str | Path, dir_fd: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=dir_fd)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _working_directory(path: str | Path) -> Iterator[None]:
    with _directory(".") as before:
        os.chdir(path)
        try:
            yield
        finally:
            os.fchdir(before)


def _read(name: str | Path) -> bytes:
    with open(name, "rb") as file:
        return file.read()


@reader
def relative_paths(root: Path, out: Transcript) -> None:
    """Reads files by relative names, also with '.', '..' and '//', from working directories inside
    and outside the dataset."""
    for path in mixed_files(root):
        inside = path.relative_to(root)
        with _working_directory(root):
            for name in (f"{inside}", f"./{inside}", f"text/..//{inside}", f"././/{inside}"):
                out.data(f"root: {name}", _read(name))
        with _working_directory(path.parent):
            for name in (path.name, f"./{path.name}", f"../{path.parent.name}/{path.name}"):
                out.data(f"{inside.parent}: {name}", _read(name))
        with _working_directory("/"):
            out.data(f"/: {inside}", _read(str(path)[1:]))
        for name in (f"{root}//{inside}", f"{root}/./{inside}", f"{root}/../{root.name}/{inside}"):
            out.data(name.removeprefix(str(root)), _read(name))


@reader
def fchdir_paths(root: Path, out: Transcript) -> None:
    """Changes the working directory by a descriptor, by a path through a link, and one step at a
    time. After each change, reads a file by a relative name."""
    with _directory(".") as before:
        try:
            with _directory(root / "text") as descriptor:
                os.fchdir(descriptor)
            out.data("by descriptor", _read("lines_01.txt"))
            os.chdir(root / "links" / "to_directory")
            out.data("through a link", _read("lines_02.txt"))
            # '..' is the parent of the link's target, not of the link.
            out.data("up from there", _read("../edge/page"))
            os.chdir("..")
            os.chdir("edge")
            out.data("step by step", _read("page"))
            out.line("names", names=sorted(os.listdir(".")))
        finally:
            os.fchdir(before)


@reader
def dirfd_paths(root: Path, out: Transcript) -> None:
    """Opens files with os.open and dir_fd. Some names contain '..'. Some are absolute, and for
    these dir_fd is ignored."""
    with _directory(root) as top, _directory("edge", dir_fd=top) as edge:
        names = [(top, str(path.relative_to(root))) for path in mixed_files(root)]
        names += [(edge, "page"), (edge, "../edge/block"), (edge, ".//one_byte")]
        names += [(edge, str(root / "edge" / "twin_b")), (edge, "../links/to_file")]
        for base, name in names:
            descriptor = os.open(name, os.O_RDONLY, dir_fd=base)
            with os.fdopen(descriptor, "rb") as file:
                out.data(name, file.read())
            out.attributes(name, "fstatat", os.stat(name, dir_fd=base))
            out.attributes(
                name, "fstatat_nofollow", os.stat(name, dir_fd=base, follow_symlinks=False)
            )
            out.line(name, access=os.access(name, os.R_OK, dir_fd=base))


@reader
def fwalk_dirfd(root: Path, out: Transcript) -> None:
    """Walks with os.fwalk, which opens and lists directories by descriptor."""
    for folder, names, files, descriptor in os.fwalk(root):
        names.sort()
        out.line(folder, names=names, files=sorted(files))
        for name in sorted(files)[:3]:
            with os.fdopen(os.open(name, os.O_RDONLY, dir_fd=descriptor), "rb") as file:
                out.data(Path(folder) / name, file.read())


@reader
def symlink_paths(root: Path, out: Transcript) -> None:
    """Reads through links inside the dataset to files and directories."""
    links = root / "links"
    for path in sorted(links.iterdir()):
        out.line(path, leads_to=os.readlink(path), real=os.path.relpath(path.resolve(), root))
        if path.is_file():
            out.data(path, _read(path))
    for path in sorted((links / "to_directory").iterdir()):
        out.data(path, _read(path))
        out.attributes(path, "stat", path.stat())


@reader
def symlinks_from_outside(root: Path, out: Transcript) -> None:
    """Reads through links outside the dataset, which lead to the dataset and to a file in it."""
    with tempfile.TemporaryDirectory() as folder:
        data, page = Path(folder) / "data", Path(folder) / "page"
        data.symlink_to(root, target_is_directory=True)
        page.symlink_to(root / "links" / "to_link")
        out.data("page", _read(page))
        for path in mixed_files(root):
            inside = path.relative_to(root)
            out.data(f"data/{inside}", _read(data / inside))
            out.attributes(f"data/{inside}", "stat", (data / inside).stat())


@reader
def listings(root: Path, out: Transcript) -> None:
    """Lists the names of all files and directories with listdir, walk, glob and rglob."""
    for folder, names, files in os.walk(root, followlinks=True):
        names.sort()
        out.line(folder, names=names, files=sorted(files), listed=sorted(os.listdir(folder)))
    for pattern in ("**/*.bin", "images/*/*_00[0-3].*", "links/*/*", "no such/*"):
        found = sorted(os.path.relpath(name, root) for name in glob.glob(f"{root}/{pattern}"))
        out.line(pattern, found=found)
    out.line("rglob", found=[str(p.relative_to(root)) for p in sorted(root.rglob("*"))])


def _status_by_descriptor(path: Path) -> os.stat_result:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


@reader
def stat_all(root: Path, out: Transcript) -> None:
    """Reads the attributes of every file, link and directory with each call that returns them."""
    for folder, names, files in os.walk(root):
        names.sort()
        for name in sorted(names + files):
            path = Path(folder) / name
            out.attributes(path, "stat", os.stat(path))
            out.attributes(path, "lstat", os.lstat(path))
            out.attributes(path, "fstat", _status_by_descriptor(path))
            out.line(path, getsize=os.path.getsize(path), getmtime=os.path.getmtime(path))
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                kinds = [entry.is_file(), entry.is_dir(), entry.is_symlink()]
                out.line(entry.path, kinds=kinds, inode=entry.inode())
                out.attributes(entry.path, "scandir", entry.stat())
                out.attributes(entry.path, "scandir_l", entry.stat(follow_symlinks=False))


@reader
def same_file(root: Path, out: Transcript) -> None:
    """Records whether os.path reports the same file for two hard links of a file, for two open
    descriptors of a file, and for a path and its open descriptor."""
    twins = root / "edge" / "twin_a", root / "edge" / "twin_b"
    out.line("twins", same=os.path.samefile(*twins))
    for path in [*mixed_files(root), *twins]:
        with open(path, "rb") as one, open(path, "rb") as two:
            out.line(path, same=os.path.sameopenfile(one.fileno(), two.fileno()))
            by_name = os.stat(path)
            out.line(path, same=os.path.samestat(by_name, os.fstat(one.fileno())))
            one.read()
            out.attributes(path, "fstat_after_read", os.fstat(one.fileno()))


@reader
def extended(root: Path, out: Transcript) -> None:
    """Reads extended attributes by name and by descriptor, and checks access rights by name."""
    for path in mixed_files(root):
        name = str(path.relative_to(root))
        with open(path, "rb") as file:
            number = file.fileno()
            out.outcome(f"listxattr {name}", partial(os.listxattr, path))
            out.outcome(f"flistxattr {name}", partial(os.listxattr, number))
            for right in (os.F_OK, os.R_OK, os.X_OK):
                out.line(path, right=right, access=os.access(path, right))


def _open_close(path: str | Path, flags: int) -> str:
    os.close(os.open(path, flags))
    return "opened"


def _on_descriptor(path: Path, call: str) -> object:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        match call:
            case "read":
                return len(os.read(descriptor, 10))
            case "write":
                return os.write(descriptor, b"x")
            case "lseek":
                return os.lseek(descriptor, -1, os.SEEK_SET)
            case "pread":
                return len(os.pread(descriptor, 10, -1))
            case "ftruncate":
                os.ftruncate(descriptor, 0)
                return None
            case "listdir":
                return os.listdir(descriptor)
            case _:
                raise ValueError(call)
    finally:
        os.close(descriptor)


@reader
def errors(root: Path, out: Transcript) -> None:
    """Calls that fail must fail with the same error number as without the library."""
    page, link = root / "edge" / "page", root / "links" / "to_file"
    opens: dict[str, tuple[Path | str, int]] = {
        "missing file": (root / "edge" / "missing", os.O_RDONLY),
        "missing directory": (root / "missing" / "page", os.O_RDONLY),
        "below a file": (page / "page", os.O_RDONLY),
        "file with a slash": (f"{page}/", os.O_RDONLY),
        "link not followed": (link, os.O_RDONLY | os.O_NOFOLLOW),
        "file as directory": (page, os.O_RDONLY | os.O_DIRECTORY),
        "directory for writing": (root / "edge", os.O_WRONLY),
        "name too long": (root / ("n" * 300), os.O_RDONLY),
        "empty name": ("", os.O_RDONLY),
        "directory": (root / "edge", os.O_RDONLY),
        "regular file not followed": (page, os.O_RDONLY | os.O_NOFOLLOW),
    }
    for what, (path, flags) in opens.items():
        out.outcome(what, partial(_open_close, path, flags))
    out.outcome("read a directory", partial(_on_descriptor, root / "edge", "read"))
    for call in ("write", "lseek", "pread", "ftruncate", "listdir"):
        out.outcome(f"{call} on a file", partial(_on_descriptor, page, call))
    out.outcome("list a file", lambda: os.listdir(page))
    out.outcome("list what is missing", lambda: os.listdir(root / "missing"))
    out.outcome("readlink of a file", lambda: os.readlink(page))
    out.outcome("stat below a file", lambda: os.stat(page / "page").st_size)
    out.outcome("stat of a missing file", lambda: os.stat(root / "missing").st_size)
    out.outcome("closed descriptor", lambda: _read_closed(page))
    out.line("unharmed", sizes=[path.stat().st_size for path in regular_files(root)][:20])


def _read_closed(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    os.close(descriptor)
    return len(os.read(descriptor, 10))


def _open_with(flags: tuple[str, ...], root: Path, out: Transcript) -> None:
    import fcntl

    for path in files_of(root, "edge/page", "edge/empty", "edge/block_and_one"):
        for name in flags:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, name))
            try:
                status = fcntl.fcntl(descriptor, fcntl.F_GETFL)
                shared = fcntl.fcntl(descriptor, fcntl.F_GETFD)
                out.line(path, flag=name, status=status, descriptor_flags=shared)
                out.data(path, os.read(descriptor, 5000))
            finally:
                os.close(descriptor)


@reader
def opened_with_flags(root: Path, out: Transcript) -> None:
    """Opens files read-only with every harmless flag, and records the flags that the descriptor
    then shows."""
    flags = ("O_CLOEXEC", "O_NOATIME", "O_NONBLOCK", "O_NOCTTY", "O_NOFOLLOW")
    _open_with(flags, root, out)


@reader
def opened_with_sync(root: Path, out: Transcript) -> None:
    """Opens files read-only with flags that only writers need."""
    _open_with(("O_SYNC", "O_DSYNC", "O_RSYNC"), root, out)
