"""The tree of files on which operations.py works: its content, the random choices of files and
arguments, and the notation of results."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import random
import stat
from pathlib import Path
from typing import Any, NamedTuple

# The timestamp that `plant` sets for all files [s since 1970]. If a file's timestamp is much later,
# it was set during the run.
OLD = 1_400_000_000
SIZES = (0, 1, 777, 4095, 4096, 65_536, 70_001, 300_000, 1_500_000, 1 << 20)
# The files that end with a hole, by their index in SIZES.
SPARSE = (7, 8)
FOLDERS = ("d0", "d1", "d0/deep")
SLOTS = 8

Identity = tuple[int, int]
Way = dict[str, Any]


def plant(root: Path) -> None:
    """Makes files of several sizes in nested directories. Some of the files have holes or extended
    attributes. Also makes a hard link and symbolic links."""
    noise, work = random.Random(1), root / "work"
    for folder in FOLDERS:
        (work / folder).mkdir(parents=True)
    for number, size in enumerate(SIZES):
        for folder in ("", *FOLDERS) if number % 3 == 0 else ("", "d0"):
            path = work / folder / f"f{number}"
            path.write_bytes(noise.randbytes(size))
            if number in SPARSE:
                os.truncate(path, size // 2)
                os.truncate(path, size)
            path.chmod((0o644, 0o600, 0o755)[number % 3])
    os.link(work / "f6", work / "d1/twin")
    for name, target in (("to_f5", "f5"), ("to_d0", "d0"), ("to_nothing", "nothing")):
        (work / name).symlink_to(target)
    (work / "d1/up").symlink_to("../d0/f6")
    for name in ("f3", "f8"):
        try:
            os.setxattr(work / name, "user.colour", b"blue")
        except OSError as error:
            if error.errno != errno.ENOTSUP:
                raise
    for path in work.rglob("*"):
        os.utime(path, (OLD, OLD), follow_symlinks=False)


def digest(data: Any) -> str:
    return f"{len(data)}:{hashlib.md5(data).hexdigest()[:10]}"


def identity(st: os.stat_result) -> Identity:
    return st.st_dev, st.st_ino


class Slot(NamedTuple):
    """An open descriptor.

    clean : whether the descriptor may refer to a copy
    writes : whether the descriptor was opened for writing
    """

    fd: int
    clean: bool
    writes: bool


class Tree:
    """The tree of files, and the program's open descriptors and mappings of these files. `said`
    holds the random choices of the current operation."""

    def __init__(self, root: Path, seed: int) -> None:
        self.work = root / "work"
        self.random = random.Random(seed)
        self.said: list[Any] = []
        self.slots: dict[int, Slot] = {}
        self.maps: dict[int, tuple[mmap.mmap, Identity]] = {}
        self.folder = os.open(self.work, os.O_RDONLY | os.O_DIRECTORY)
        # Files that were changed. They are certainly read from the source until the next daemon
        # starts. A file whose change has failed is not in the set, because it may still have a
        # copy.
        self.changed: set[Identity] = set()
        # Files that may contain blocks that were allocated but never written.
        self.unwritten: set[Identity] = set()

    # --- choices --------------------------------------------------------------------------------

    def say(self, choice: Any) -> Any:
        self.said.append(choice)
        return choice

    def choose(self, *choices: Any) -> Any:
        return self.say(self.random.choice(choices))

    def name(self) -> str:
        """Returns a random path relative to the tree. Most of these paths exist."""
        if self.random.random() < 0.6:
            return str(self.choose(*self.names_of(None)))
        kind = self.random.randrange(8)
        name = f"{'n' if kind == 0 else 'f'}{self.random.randrange(10)}"
        if kind == 1:
            name = self.random.choice(("to_f5", "twin", "up", "to_nothing", "f3/x", "to_d0"))
        place = self.random.choice(("", "", "", "d0", "d0/deep", "to_d0", "d1", "absent"))
        return str(self.say(os.path.join(place, name)))

    def way(self) -> Way:
        """Returns a random path in one of several spellings, as arguments for functions that take
        `path` and `dir_fd`."""
        name, how = self.name(), self.random.randrange(6)
        if how == 0:
            return {"path": name, "dir_fd": self.folder}
        if how == 1:
            return {"path": f"{self.work}/d0/../{name}"}
        if how == 2:
            return {"path": f"{self.work}//./{name}"}
        if how == 3:
            return {"path": name}
        return {"path": f"{self.work}/{name}"}

    def path(self) -> str:
        return str(self.work / self.name())

    def slot(self) -> Slot:
        if not self.slots or self.random.random() < 0.02:
            raise OSError(errno.EBADF, "")
        return self.slots[self.choose(*sorted(self.slots))]

    def fd(self) -> int:
        return self.slot().fd

    def keep(self, slot: Slot) -> None:
        number = self.say(self.random.randrange(SLOTS))
        if number in self.slots:
            os.close(self.slots.pop(number).fd)
        self.slots[number] = slot

    def size(self) -> int:
        return int(self.choose(0, 1, 100, 4096, 10_000, 65_536, 65_537, 200_000, 1 << 20))

    def at(self, fd: int) -> int:
        """Returns a random offset [bytes]: inside the file, at its end or beyond it."""
        size = os.fstat(fd).st_size
        return int(self.choose(0, 1, size // 2, max(size - 100, 0), size, size + 10))

    def bytes(self) -> bytes:
        return bytes(self.random.randbytes(self.random.choice((0, 1, 100, 5000, 70_000))))

    # --- known differences ----------------------------------------------------------------------

    def changing(self, *ways: Way) -> None:
        """Must be called before an operation that changes the files or directories `ways`. Calls
        `changing_file` for each of them. For a link, also calls it for the file to which the link
        leads. For a directory, also calls it for everything below the directory."""
        for way in ways:
            for follow in (True, False):
                try:
                    st = os.stat(**way, follow_symlinks=follow)
                except OSError:
                    continue
                self.changing_file(identity(st))
                if stat.S_ISDIR(st.st_mode):
                    self._changing_below(way["path"])

    def _changing_below(self, directory: str) -> None:
        for folder, _, names in os.walk(directory):
            for name in names:
                self.changing_file(identity(os.lstat(os.path.join(folder, name))))

    def changing_file(self, file: Identity, but: int = -1) -> None:
        """Closes the file's mappings, and the descriptors that may refer to its copy, except the
        descriptor `but`. After a change of the file, a descriptor of the copy would still show the
        old version. An access to a mapping beyond the file's new end would raise SIGBUS."""
        for number, slot in list(self.slots.items()):
            if slot.clean and slot.fd != but and identity(os.fstat(slot.fd)) == file:
                os.close(self.slots.pop(number).fd)
        for number, (mapped, of) in list(self.maps.items()):
            if of == file:
                mapped.close()
                del self.maps[number]

    def settle(self) -> None:
        """Removes files that no longer exist from `changed` and `unwritten`. Otherwise a new file
        that gets the inode number of a removed one would count as changed, possibly in only one of
        the two runs."""
        there = {identity(os.fstat(slot.fd)) for slot in self.slots.values()}
        there.update(identity(os.lstat(self.work / name)) for name in self.names_of(None))
        self.changed &= there
        self.unwritten &= there

    def forget(self) -> None:
        """Called before a pause, in which a new daemon makes copies of all files. Clears `changed`.
        Closes all descriptors for writing and all mappings, because the daemon makes no copy of a
        file that is open for writing."""
        for number, slot in list(self.slots.items()):
            if slot.writes:
                os.close(self.slots.pop(number).fd)
        # Each mapping that Python makes keeps a duplicate of the descriptor open.
        for mapped, _ in self.maps.values():
            mapped.close()
        self.maps.clear()
        self.changed.clear()

    # --- notation of results --------------------------------------------------------------------

    def names_of(self, wanted: Identity | None) -> list[str]:
        """Returns all paths of the file `wanted` in the tree; if `wanted` is None, the paths of all
        files and directories. Results identify a file by its paths, because its inode number
        differs between the two runs."""
        found = []
        for folder, folders, names in os.walk(self.work):
            for name in (*folders, *names):
                path = os.path.join(folder, name)
                if wanted is None or identity(os.lstat(path)) == wanted:
                    found.append(os.path.relpath(path, self.work))
        return sorted(found)

    def attributes(self, st: os.stat_result) -> list[Any]:
        written = st.st_mtime_ns if st.st_mtime < OLD + 1_000_000 else "now"
        sizes = ["-", "-"] if stat.S_ISDIR(st.st_mode) else [st.st_nlink, st.st_size]
        names = self.names_of(identity(st))
        return [stat.filemode(st.st_mode), *sizes, st.st_uid, st.st_gid, written, names]
