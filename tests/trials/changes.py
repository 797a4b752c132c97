"""Answers requests one after the other. A request either changes a file, or reports everything that
a program can see of the files.

    python -I -S changes.py

A request is a line of JSON: ["change", OPERATION, SEED, DIRECTORY, WHO] or ["look", DIRECTORY]. A
change depends only on the seed, the names in the directory, and earlier changes by WHO, so it is
the same in two equal directories. The answer is a line of JSON as well.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import mmap
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
EXCHANGE = 2
SIZES = (0, 1, 100, 5000, 70_000)


def plant(top: str, seed: int) -> None:
    """Creates files (some of them in directories), a second hard link to a file, and symbolic
    links."""
    noise = random.Random(seed)
    for name in ("d", "e"):
        os.makedirs(os.path.join(top, name))
    for name in ("f0", "f1", "f2", "f3", "d/x", "d/y", "e/x"):
        with open(os.path.join(top, name), "wb") as file:
            file.write(noise.randbytes(noise.choice((1, 4096, 9000, 70_000, 300_000))))
    os.link(os.path.join(top, "f0"), os.path.join(top, "hard"))
    os.symlink("f1", os.path.join(top, "to_f1"))
    os.symlink("d", os.path.join(top, "to_d"))


# --- changes --------------------------------------------------------------------------------------


class Changes:
    """Changes files below the directory `top`. Each public method is an operation, except the
    helpers `path`, `data`, `opened` and `shell`."""

    def __init__(self, top: str, seed: int, held: list[int]) -> None:
        self.top, self.random, self.held = top, random.Random(seed), held

    # --- choices

    def path(self) -> str:
        """Returns the path of a file, which may be missing."""
        name = self.random.choice(
            ("f0", "f1", "f2", "f3", "f4", "hard", "to_f1", "d/x", "d/y", "e/x", "to_d/x")
        )
        return os.path.join(self.top, name)

    def data(self) -> bytes:
        return self.random.randbytes(self.random.choice((1, 50, 6000)))

    @contextmanager
    def opened(self, flags: int, path: str | None = None) -> Iterator[int]:
        fd = os.open(path or self.path(), flags, 0o644)
        try:
            yield fd
        finally:
            os.close(fd)

    def shell(self, script: str) -> None:
        """Runs a script in which $1 and $2 are paths of files and $3 is some text."""
        words = [self.path(), self.path(), self.data().hex()]
        subprocess.run(
            ["sh", "-c", script, "sh", *words], cwd=self.top, capture_output=True, check=False
        )

    # --- content

    def write(self) -> None:
        with self.opened(os.O_WRONLY) as fd:
            os.write(fd, self.data())

    def write_in_the_middle(self) -> None:
        with self.opened(os.O_RDWR) as fd:
            os.pwritev(fd, [self.data(), self.data()], os.fstat(fd).st_size // 2)

    def append(self) -> None:
        with open(self.path(), "ab") as file:
            file.write(self.data())

    def rewrite(self) -> None:
        with open(self.path(), "wb") as file:
            file.write(self.data())

    def truncate(self) -> None:
        os.truncate(self.path(), self.random.choice(SIZES))

    def truncate_descriptor(self) -> None:
        with self.opened(os.O_RDWR) as fd:
            os.ftruncate(fd, self.random.choice(SIZES))
            os.posix_fallocate(fd, 0, 1 + self.random.choice(SIZES))

    def write_a_mapping(self) -> None:
        with self.opened(os.O_RDWR) as fd:
            size, data = os.fstat(fd).st_size, self.data()
            with mmap.mmap(fd, size) as mapped:
                mapped[: min(len(data), size)] = data[:size]

    def send(self) -> None:
        with self.opened(os.O_RDONLY) as source, self.opened(os.O_WRONLY) as target:
            os.sendfile(target, source, 0, 5000)

    def copy_a_range(self) -> None:
        with self.opened(os.O_RDONLY) as source, self.opened(os.O_WRONLY) as target:
            os.copy_file_range(source, target, 5000, 10, 100)

    def copy_a_file(self) -> None:
        shutil.copyfile(self.path(), self.path())

    def write_by_its_name_in_proc(self) -> None:
        with (
            self.opened(os.O_RDONLY) as fd,
            self.opened(os.O_RDWR, f"/proc/self/fd/{fd}") as again,
        ):
            os.write(again, self.data())

    def write_from_a_directory(self) -> None:
        with self.opened(os.O_RDONLY | os.O_DIRECTORY, self.top) as directory:
            name = os.path.relpath(self.path(), self.top)
            fd = os.open(name, os.O_WRONLY | os.O_TRUNC, dir_fd=directory)
            os.write(fd, self.data())
            os.close(fd)

    def write_from_the_working_directory(self) -> None:
        before = os.getcwd()
        os.chdir(os.path.join(self.top, "d"))
        try:
            with open("../" + os.path.relpath(self.path(), self.top), "r+b") as file:
                file.write(self.data())
        finally:
            os.chdir(before)

    def write_in_a_child(self) -> None:
        with self.opened(os.O_WRONLY) as fd:
            data = self.data()
            child = os.fork()
            if child == 0:
                os.write(fd, data)
                os._exit(0)
            os.waitpid(child, 0)

    def write_what_is_held(self) -> None:
        """If fewer than three descriptors are kept, opens a file and keeps its descriptor.
        Otherwise writes through one of the kept descriptors, whose file may have changed since the
        descriptor was opened."""
        if len(self.held) < 3:
            self.held.append(os.open(self.path(), os.O_RDWR))
            return
        fd = self.held[self.random.randrange(len(self.held))]
        os.pwrite(fd, self.data(), self.random.choice(SIZES))
        if self.random.random() < 0.5:
            os.ftruncate(fd, self.random.choice(SIZES))
            self.held.remove(fd)
            os.close(fd)

    # --- names

    def rename(self) -> None:
        os.rename(self.path(), self.path())

    def replace_by_a_new_file(self) -> None:
        fd, made = tempfile.mkstemp(dir=self.top)
        os.write(fd, self.data())
        os.close(fd)
        os.chmod(made, 0o644)
        try:
            os.rename(made, self.path())
        except OSError:  # a directory has that name
            os.unlink(made)
            raise

    def replace_by_a_nameless_file(self) -> None:
        path = self.path()
        with self.opened(os.O_TMPFILE | os.O_RDWR, self.top) as fd:
            os.write(fd, self.data())
            os.unlink(path)
            with self.opened(os.O_RDONLY | os.O_DIRECTORY, "/proc/self/fd") as directory:
                os.link(str(fd), path, src_dir_fd=directory, follow_symlinks=True)

    def exchange(self) -> None:
        self._exchange(self.path(), self.path())

    def exchange_directories(self) -> None:
        self._exchange(os.path.join(self.top, "d"), os.path.join(self.top, "e"))

    @staticmethod
    def _exchange(one: str, other: str) -> None:
        if LIBC.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), EXCHANGE) != 0:
            raise OSError(ctypes.get_errno(), "renameat2")

    def rename_a_directory(self) -> None:
        d, moved = (os.path.join(self.top, name) for name in ("d", "moved"))
        os.rename(d, moved) if os.path.isdir(d) else os.rename(moved, d)

    def make_a_directory(self) -> None:
        made = os.path.join(self.top, self.random.choice(("d", "g", "f4")))
        os.mkdir(made)
        with open(os.path.join(made, "x"), "wb") as file:
            file.write(self.data())

    def remove_a_directory(self) -> None:
        shutil.rmtree(os.path.join(self.top, self.random.choice(("e", "g"))))

    def unlink(self) -> None:
        os.unlink(self.path())

    def link(self) -> None:
        source, target = self.path(), self.path()
        with self._replaced(target) as made:
            os.link(source, made)

    def symlink(self) -> None:
        path = self.path()
        with self._replaced(path) as made:
            os.symlink(self.random.choice(("f2", "f3", "nothing")), made)

    @contextmanager
    def _replaced(self, path: str) -> Iterator[str]:
        """Yields the path of a file that the block must create. When the block ends, renames this
        file to `path`.

        If both paths are hard links to the same file, rename does nothing. In this case, removes
        the path that the block has created.
        """
        made = os.path.join(self.top, "made")
        yield made
        os.rename(made, path)
        if os.path.lexists(made):
            os.unlink(made)

    # --- attributes

    def chmod(self) -> None:
        os.chmod(self.path(), self.random.choice((0o600, 0o644, 0o755)))

    def chmod_a_descriptor(self) -> None:
        with self.opened(os.O_RDONLY) as fd:
            os.fchmod(fd, self.random.choice((0o600, 0o640)))

    def set_times(self) -> None:
        times = self.random.choice(((5, 6), (1_500_000_000, 1_500_000_001)))
        with self.opened(os.O_RDONLY) as fd:
            os.utime(self.random.choice((fd, self.path())), times)

    def set_an_attribute(self) -> None:
        os.setxattr(self.path(), "user.colour", self.data()[:8])

    # --- other programs

    def by_sed(self) -> None:
        self.shell('sed -i "1s/^/$3/" "$1"')

    def by_cp(self) -> None:
        self.shell('cp "$1" "$2"')

    def by_mv(self) -> None:
        self.shell('echo "$3" > new && mv new "$1"')

    def by_dd(self) -> None:
        """Copies bytes from one file to another.

        If the two paths lead to the same file, copies nothing, because the result would depend on
        which descriptors of the file were opened before.
        """
        self.shell('[ "$1" -ef "$2" ] || dd if="$1" of="$2" bs=1000 count=3 seek=1 conv=notrunc')

    def by_tar(self) -> None:
        self.shell("tar -cf all.tar d e && rm -r d && tar -xf all.tar; rm -f all.tar")

    def by_a_redirection(self) -> None:
        self.shell('echo "$3" >> "$1"; : > "$2"')


OPERATIONS = [name for name in vars(Changes) if not name.startswith("_")]
for helper in ("path", "data", "opened", "shell"):
    OPERATIONS.remove(helper)


# --- looking --------------------------------------------------------------------------------------


def attributes(st: os.stat_result) -> dict[str, int]:
    """Returns the attributes in `st`. Leaves out the size of a directory, because it depends on the
    file system."""
    names = ["mode", "nlink", "uid", "gid", "ino", "dev", "mtime_ns", "ctime_ns"]
    found = {name: getattr(st, f"st_{name}") for name in names}
    return found | ({} if stat.S_ISDIR(st.st_mode) else {"size": st.st_size})


def digest(data: Any) -> str:
    return f"{len(data)} {hashlib.sha256(data).hexdigest()[:16]}"


def answer(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except OSError as error:
        # The errors that shutil itself raises have no errno.
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    except ValueError as error:  # for an empty file, Python's mmap raises ValueError
        return type(error).__name__


def opened_and_read(path: str) -> Any:
    with open(path, "rb", opener=lambda p, f: os.open(p, f | os.O_NONBLOCK)) as file:
        st = os.fstat(file.fileno())
        data = file.read()
        mapped = b""
        if data:
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as found:
                mapped = found[:]
        end = os.pread(file.fileno(), 100, max(st.st_size - 50, 0))
        return [digest(data), digest(mapped), digest(end), attributes(st)]


def look_at(path: str) -> dict[str, Any]:
    return {
        "lstat": answer(lambda: attributes(os.lstat(path))),
        "stat": answer(lambda: attributes(os.stat(path))),
        "access": os.access(path, os.X_OK),
        "target": answer(lambda: os.readlink(path)),
        "real": os.path.realpath(path),
        "content": answer(lambda: opened_and_read(path)),
        "colour": answer(lambda: os.getxattr(path, "user.colour").hex()),
    }


def look(top: str) -> dict[str, Any]:
    found: dict[str, Any] = {".": sorted(os.listdir(top))}
    for folder, folders, names in os.walk(top):
        with os.scandir(folder) as entries:
            kinds = {
                e.name: [e.inode(), e.is_dir(follow_symlinks=False), e.is_symlink()]
                for e in entries
            }
        for name in (*folders, *names):
            path = os.path.join(folder, name)
            found[os.path.relpath(path, top)] = look_at(path) | {"entry": kinds.get(name)}
    # These names are examined even if they are missing. The answer then says so.
    for name in ("f0", "f4", "g", "d/x", "moved/x", "to_d/y"):
        found.setdefault(name, look_at(os.path.join(top, name)))
    return found


def main() -> None:
    held: dict[tuple[str, str], list[int]] = {}
    for line in sys.stdin:
        kind, *words = json.loads(line)
        if kind == "look":
            said: Any = look(*words)
        else:
            operation, seed, top, who = words
            changes = Changes(top, seed, held.setdefault((top, who), []))
            said = answer(getattr(changes, operation))
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
