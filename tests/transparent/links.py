"""Makes calls with random paths through symbolic links, and prints the result of each. The links
lead into sources or elsewhere, and are continually replaced by links to other targets.

usage: links.py HOME SEED STEPS SOURCE ...

The program makes and replaces links by direct system calls, so that the library does not notice.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import random
import stat
import sys
from collections.abc import Callable
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
# The numbers of symlinkat and renameat2, system calls that every architecture has.
SYMLINKAT, RENAMEAT2 = {"x86_64": (266, 316), "aarch64": (36, 276)}[os.uname().machine]
AT_FDCWD = -100


def system(number: int, *words: Any) -> None:
    if libc.syscall(number, *words):
        raise OSError(ctypes.get_errno(), "system call")


class Tree:
    def __init__(self, home: str, seed: str, sources: list[str]) -> None:
        self.home, self.random, self.sources = home, random.Random(seed), sources
        self.reads = 0  # reads of source files
        self.inodes: set[int] = set()
        self.directories: list[str] = []
        self.files: list[str] = []
        for source in sources:
            for folder, folders, files in os.walk(source):
                below = os.path.relpath(folder, source)
                self.directories.append(folder)
                self.inodes.add(os.lstat(folder).st_ino)
                for name in files + folders:
                    self.inodes.add(os.lstat(os.path.join(folder, name)).st_ino)
                self.files += [os.path.normpath(os.path.join(below, name)) for name in files]
        self.places = [home] + [f"{home}/{name}" for name in ("one", "one/two", "three")]
        self.links = [f"{place}/link{i}" for place in self.places for i in range(4)]
        for link in self.links:
            self.point(link)

    def choose(self, *among: Any) -> Any:
        return self.random.choice(among)

    def target(self, link: str) -> str:
        """Returns a random target for the link. The target is in a source, is another link, is
        outside the sources, or does not exist."""
        aim = self.random.random()
        into = self.random.choice(self.directories)
        if aim < 0.5:
            path = into
        elif aim < 0.65:
            path = self.random.choice(self.sources) + "/" + self.random.choice(self.files)
        elif aim < 0.8:
            path = self.random.choice(self.links)
        elif aim < 0.95:
            path = f"{self.home}/decoy"
        else:
            odd = ("missing", ".", "..", os.path.basename(link), "/", "/proc/self/cwd")
            return self.random.choice(odd)
        if self.random.random() < 0.4:
            path = os.path.relpath(path, os.path.dirname(link))
        return path + str(self.choose("", "", "", "/", "/."))

    def point(self, link: str) -> None:
        system(SYMLINKAT, os.fsencode(self.target(link)), AT_FDCWD, os.fsencode(link + "~"))
        system(RENAMEAT2, AT_FDCWD, os.fsencode(link + "~"), AT_FDCWD, os.fsencode(link), 0)

    def path(self) -> str:
        link = self.random.choice(self.links)
        parts = self.random.choice(self.files).split("/")
        below = "/".join(parts[self.random.randrange(len(parts)) :])
        whole = self.random.choice((link, f"{link}/{below}", f"{link}/{'/'.join(parts)}"))
        if self.random.random() < 0.1:
            at = self.random.choice([i for i, c in enumerate(whole) if c == "/"])
            odd = self.random.choice(("/", "/.", "/../" + parts[0], "/.."))
            whole = whole[:at] + odd + whole[at:]
        end = self.random.choice(("/", "/.", "/..")) if self.random.random() < 0.1 else ""
        return whole + end

    # --- what is asked ----------------------------------------------------------------------

    def told(self, st: os.stat_result) -> Any:
        mine = st.st_ino in self.inodes
        times = (st.st_ino, st.st_mtime_ns, st.st_nlink) if mine or stat.S_ISREG(st.st_mode) else ()
        size = 0 if stat.S_ISDIR(st.st_mode) and not mine else st.st_size
        return (stat.filemode(st.st_mode), size, *times)

    def read(self, path: str, flags: int = 0, **more: Any) -> Any:
        fd = os.open(path, os.O_RDONLY | flags, **more)
        try:
            st = os.fstat(fd)
            self.reads += st.st_ino in self.inodes and not stat.S_ISDIR(st.st_mode)
            return hashlib.sha256(os.read(fd, 1 << 20)).hexdigest()[:12], self.told(st)
        finally:
            os.close(fd)

    def stream(self, path: str) -> str:
        libc.fopen.restype = ctypes.c_void_p
        room = ctypes.create_string_buffer(1 << 16)
        file = libc.fopen(os.fsencode(path), b"r")
        if not file:
            raise OSError(ctypes.get_errno(), "fopen")
        n = libc.fread(room, 1, len(room), ctypes.c_void_p(file))
        libc.fclose(ctypes.c_void_p(file))
        return hashlib.sha256(room.raw[:n]).hexdigest()[:12]

    def listed(self, path: str) -> list[str]:
        names = os.listdir(path)
        return names if os.stat(path).st_ino in self.inodes else sorted(names)

    def at_directory(self, path: str) -> Any:
        fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            return self.read(os.path.basename(path) or ".", dir_fd=fd)
        finally:
            os.close(fd)

    def in_directory(self, path: str) -> Any:
        os.chdir(os.path.dirname(path))
        try:
            return self.read(os.path.basename(path) or ".")
        finally:
            os.chdir(self.home)

    def ask(self, path: str) -> Any:
        kind = self.random.randrange(16)
        if kind < 5:
            return self.read(path)
        if kind == 5:
            return self.read(path, self.choose(os.O_NOFOLLOW, os.O_NONBLOCK, os.O_NOATIME))
        if kind == 6:
            return self.stream(path)
        if kind == 7:
            return self.told(os.stat(path))
        if kind == 8:
            return self.told(os.lstat(path))
        if kind == 9:
            return self.listed(path)
        if kind == 10:
            return os.access(path, self.choose(os.F_OK, os.R_OK, os.X_OK)), os.path.isdir(path)
        if kind == 11:
            return os.readlink(path)
        if kind == 12:
            return os.path.realpath(path), self.resolved(path)
        if kind == 13:
            return self.at_directory(path)
        if kind == 14:
            return self.in_directory(path)
        return self.in_child(path)

    def resolved(self, path: str) -> bytes | int:
        libc.realpath.restype = ctypes.c_void_p
        room = ctypes.create_string_buffer(4096)
        done = libc.realpath(os.fsencode(path), room)
        return room.value if done else ctypes.get_errno()

    def in_child(self, path: str) -> bytes:
        """Reads the file in a forked child. In the child, the library has the state that it had in
        the parent at the fork."""
        there, here = os.pipe()
        child = os.fork()
        if not child:
            os.write(here, repr(answer(self.read, path)).encode())
            os._exit(0)
        os.close(here)
        said = os.read(there, 1000)
        os.close(there)
        os.waitpid(child, 0)
        return said


def answer(call: Callable[..., Any], *words: Any) -> Any:
    try:
        return call(*words)
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def main() -> None:
    home, seed, steps, *sources = sys.argv[1:]
    tree = Tree(home, seed, sources)
    os.chdir(home)
    for _ in range(int(steps)):
        if tree.random.random() < 0.1:
            tree.point(tree.random.choice(tree.links))
        path = tree.path()
        if tree.random.random() < 0.4:
            path = os.path.relpath(path[: len(home)], home) + path[len(home) :]
        for _ in range(tree.choose(1, 1, 2, 5)):
            print(path, answer(tree.ask, path))
    print(tree.reads)


main()
