"""Performs random operations on the files in ROOT/work, and prints one line with the result of
each.

    python -m conformance.operations ROOT SEED COUNT PAUSES

The operations depend on the seed and on earlier results, so two runs on equal trees print the same
lines. PAUSES times during the run, the program prints "pause" and waits for a line on its standard
input.

The program avoids the known differences that docs/transparency.md lists: access and change times
(atime, ctime), fstatvfs and locks. Before it changes a file, it closes its descriptors of the
file's copy, because they would still show the old version.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import mmap
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

from conformance.operations_tree import OLD, Slot, Tree, digest, identity

FLAGS = ("O_APPEND", "O_CREAT", "O_EXCL", "O_TRUNC", "O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK")
SHOWN = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_DIRECTORY | os.O_DIRECT | os.O_SYNC


class Operations(Tree):
    """The operations. Each method do_NAME performs the operation NAME and returns its result."""

    # --- opening, descriptors -------------------------------------------------------------------

    def do_open(self) -> Any:
        access = self.choose(os.O_RDONLY, os.O_RDONLY, os.O_RDONLY, os.O_WRONLY, os.O_RDWR)
        flags = access | os.O_NOCTTY
        for name in FLAGS:
            if self.random.random() < 0.15:
                flags |= getattr(os, self.say(name))
        way = self.way()
        changes = access != os.O_RDONLY or flags & os.O_TRUNC
        if changes:
            self.changing(way)
        fd = os.open(flags=flags, mode=0o640, **way)
        st = os.fstat(fd)
        if changes:
            self.changed.add(identity(st))
        clean = access == os.O_RDONLY and identity(st) not in self.changed
        self.keep(Slot(fd, clean, writes=access != os.O_RDONLY))
        shown = fcntl.fcntl(fd, fcntl.F_GETFL) & SHOWN, fcntl.fcntl(fd, fcntl.F_GETFD)
        return [fd, *shown, stat.filemode(st.st_mode)]

    def do_close(self) -> Any:
        number = self.say(self.random.randrange(8))
        if number in self.slots:
            os.close(self.slots.pop(number).fd)

    def do_dup(self) -> Any:
        slot = self.slot()
        how = self.choose("dup", "dup2", "F_DUPFD", "F_DUPFD_CLOEXEC")
        if how == "dup":
            fd = os.dup(slot.fd)
        elif how == "dup2":
            fd = os.dup2(slot.fd, 40 + self.random.randrange(3), inheritable=False)
        else:
            fd = fcntl.fcntl(slot.fd, getattr(fcntl, how), 3)
        # dup2 may have closed the descriptor of another slot and taken its number.
        for number in [n for n, other in self.slots.items() if other.fd == fd]:
            del self.slots[number]
        self.keep(slot._replace(fd=fd))
        os.lseek(fd, self.size(), os.SEEK_SET)
        return [fd, fcntl.fcntl(fd, fcntl.F_GETFD), os.lseek(slot.fd, 0, os.SEEK_CUR)]

    def do_fork(self) -> Any:
        """A forked child reads from a descriptor. This moves the offset, which parent and child
        share."""
        fd, size = self.fd(), self.size()
        here, there = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(there, digest(os.read(fd, size)).encode())
            finally:
                os._exit(0)
        os.close(there)
        with open(here, "rb") as answer:
            said = answer.read().decode()
        os.waitpid(child, 0)
        return [said, os.lseek(fd, 0, os.SEEK_CUR)]

    def do_child_reads(self) -> Any:
        fd = self.fd()
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "")
        done = subprocess.run(["head", "-c", "5000"], stdin=fd, capture_output=True, check=False)
        return [digest(done.stdout), done.stderr.decode(), os.lseek(fd, 0, os.SEEK_CUR)]

    def do_status_flags(self) -> Any:
        fd = self.fd()
        fcntl.fcntl(fd, fcntl.F_SETFL, self.choose(0, os.O_APPEND, os.O_NONBLOCK))
        os.set_inheritable(fd, self.choose(True, False))
        return [fcntl.fcntl(fd, fcntl.F_GETFL) & SHOWN, fcntl.fcntl(fd, fcntl.F_GETFD)]

    # --- reading --------------------------------------------------------------------------------

    def do_read(self) -> Any:
        fd = self.fd()
        return [digest(os.read(fd, self.size())), os.lseek(fd, 0, os.SEEK_CUR)]

    def do_pread(self) -> Any:
        fd = self.fd()
        return [digest(os.pread(fd, self.size(), self.at(fd))), os.lseek(fd, 0, os.SEEK_CUR)]

    def do_readv(self) -> Any:
        fd, parts = self.fd(), [bytearray(self.size()) for _ in range(3)]
        if self.choose("readv", "preadv") == "readv":
            n = os.readv(fd, parts)
        else:
            n = os.preadv(fd, parts, self.at(fd), 0)
        return [n, digest(b"".join(parts)), os.lseek(fd, 0, os.SEEK_CUR)]

    def do_lseek(self) -> Any:
        fd, whence = self.fd(), self.choose(os.SEEK_SET, os.SEEK_CUR, os.SEEK_END)
        return os.lseek(fd, self.choose(0, 1, -1, 5000, 100_000), whence)

    def do_seek_data(self) -> Any:
        fd, whence = self.fd(), self.choose(os.SEEK_DATA, os.SEEK_HOLE)
        at, is_unwritten = self.at(fd), identity(os.fstat(fd)) in self.unwritten
        # Whether lseek reports data or a hole in blocks that were never written depends on the page
        # cache.
        return "left out" if is_unwritten else os.lseek(fd, at, whence)

    def do_read_whole(self) -> Any:
        with open(self.path(), "rb", buffering=self.choose(0, 100, 65_536)) as file:
            return digest(file.read())

    def do_lines(self) -> Any:
        with open(self.path(), encoding="latin-1") as file:
            lines = file.readlines(self.size())
        return [len(lines), digest("".join(lines).encode())]

    def do_map(self) -> Any:
        fd, offset = self.fd(), self.choose(0, 0, 4096, 65_536)
        st = os.fstat(fd)
        flags = self.choose(mmap.MAP_SHARED, mmap.MAP_PRIVATE)
        length = max(st.st_size - offset, 0)
        mapped = mmap.mmap(fd, length, flags=flags, prot=mmap.PROT_READ, offset=offset)
        number = self.say(self.random.randrange(3))
        if number in self.maps:
            self.maps.pop(number)[0].close()
        self.maps[number] = mapped, identity(st)
        return digest(mapped)

    def do_read_map(self) -> Any:
        number = self.say(self.random.randrange(3))
        return digest(self.maps[number][0]) if number in self.maps else None

    def do_sendfile(self) -> Any:
        out, source = self.slot(), self.fd()
        offset = self.choose(None, 0, 5000)
        n = os.sendfile(out.fd, source, offset, self.size())
        return [n, os.lseek(source, 0, os.SEEK_CUR)]

    def do_copy_range(self) -> Any:
        source, out = self.fd(), self.fd()
        n = os.copy_file_range(source, out, self.size(), self.choose(None, 0, 5000))
        return [n, os.lseek(source, 0, os.SEEK_CUR), os.lseek(out, 0, os.SEEK_CUR)]

    # --- attributes and names -------------------------------------------------------------------

    def do_stat(self) -> Any:
        return self.attributes(os.stat(**self.way(), follow_symlinks=self.choose(True, False)))

    def do_fstat(self) -> Any:
        return self.attributes(os.fstat(self.fd()))

    def do_access(self) -> Any:
        return os.access(**self.way(), mode=self.choose(os.F_OK, os.R_OK, os.W_OK, os.X_OK))

    def do_statvfs(self) -> Any:
        found = os.statvfs(self.path())
        return [found.f_bsize, found.f_namemax, found.f_flag]

    def do_list(self) -> Any:
        with os.scandir(self.path() if self.choose(0, 1) else self.work) as entries:
            return sorted(
                [e.name, e.is_dir(), e.is_file(follow_symlinks=False), e.is_symlink(),
                 e.inode() == os.lstat(e.path).st_ino]
                for e in entries
            )  # fmt: skip

    def do_list_descriptor(self) -> Any:
        return sorted(os.listdir(self.choose(self.folder, self.fd())))

    def do_glob(self) -> Any:
        pattern = self.choose("*/f*", "**/f1", "d0/[ft]*", "to_*/deep/*")
        return sorted(glob.glob(pattern, root_dir=self.work, recursive=True))

    def do_links(self) -> Any:
        path = self.path()
        resolved = os.path.relpath(os.path.realpath(path), self.work)
        return [resolved, os.path.samefile(path, self.work / "d1")]

    def do_readlink(self) -> Any:
        name = self.choose("to_f5", "to_d0", "to_nothing", "d1/up", "f1")
        return os.readlink(name, dir_fd=self.folder)

    def do_xattr(self) -> Any:
        place = self.choose("path", "fd")
        target: Any = self.path() if place == "path" else self.fd()
        return [os.listxattr(target), os.getxattr(target, "user.colour").decode()]

    def do_chdir(self) -> Any:
        os.chdir(self.work)
        os.chdir(self.choose(".", "d0", "to_d0", "absent"))
        return os.path.relpath(os.getcwd(), self.work)

    # --- changes of content ---------------------------------------------------------------------

    def do_write(self) -> Any:
        slot, data = self.slot(), self.bytes()
        return [os.write(slot.fd, data), os.lseek(slot.fd, 0, os.SEEK_CUR)]

    def do_pwrite(self) -> Any:
        fd, data = self.fd(), self.bytes()
        return os.pwritev(fd, [data, data], self.at(fd))

    def do_truncate(self) -> Any:
        if self.choose("path", "fd") == "path":
            way = {"path": self.path()}
            self.changing(way)
            return os.truncate(way["path"], self.size())
        slot = self.slot()
        if not slot.clean:
            self.changing_file(identity(os.fstat(slot.fd)))
        return os.ftruncate(slot.fd, self.size())

    def do_allocate(self) -> Any:
        fd = self.fd()
        os.posix_fallocate(fd, self.choose(0, 5000), max(self.size(), 1))
        self.unwritten.add(identity(os.fstat(fd)))

    def do_write_map(self) -> Any:
        fd, data = self.fd(), self.bytes()
        with mmap.mmap(fd, os.fstat(fd).st_size) as mapped:
            mapped[: len(data)] = data[: len(mapped)].ljust(min(len(data), len(mapped)))
            mapped.flush()

    def do_append(self) -> Any:
        way = {"path": self.path()}
        self.changing(way)
        with open(way["path"], "ab") as file:
            self.changed.add(identity(os.fstat(file.fileno())))
            return [file.write(self.bytes()), file.tell()]

    def do_copy_file(self) -> Any:
        source, target = self.path(), self.path()
        self.changing({"path": target})
        shutil.copyfile(source, target, follow_symlinks=self.choose(True, False))
        self.changed.add(identity(os.lstat(target)))

    # --- changes of names and attributes --------------------------------------------------------

    def do_rename(self) -> Any:
        source, target = self.path(), self.path()
        self.changing({"path": source}, {"path": target})
        self.choose(os.rename, os.replace)(source, target)

    def do_rename_directory(self) -> Any:
        source, target = self.choose(("d1", "d2"), ("d2", "d1"), ("d0/deep", "d1/deep"))
        self.changing({"path": str(self.work / source)})
        os.rename(self.work / source, self.work / target)

    def do_unlink(self) -> Any:
        way = self.way()
        self.changing(way)
        os.unlink(**way)

    def do_link(self) -> Any:
        source, target = self.path(), self.path()
        self.changing({"path": source})
        os.link(source, target, follow_symlinks=self.choose(True, False))

    def do_symlink(self) -> Any:
        os.symlink(self.choose("f1", "../f2", "d0", "loop"), self.path())

    def do_mkdir(self) -> Any:
        os.mkdir(**self.way())

    def do_rmdir(self) -> Any:
        os.rmdir(**self.way())

    def do_chmod(self) -> Any:
        self._change(os.chmod, self.choose(0o644, 0o600, 0o444, 0o755))

    def do_utime(self) -> Any:
        self._change(os.utime, self.choose((OLD, OLD + 1), (5, 6), None))

    def do_chown(self) -> Any:
        self._change(os.chown, -1, -1)

    def do_set_xattr(self) -> Any:
        self._change(os.setxattr, "user.colour", self.choose(b"red", b"green"))

    def do_remove_xattr(self) -> Any:
        self._change(os.removexattr, "user.colour")

    def _change(self, function: Any, *words: Any) -> None:
        """Changes a file's attributes, through a path or through a descriptor."""
        if self.choose("path", "fd") == "path":
            way = {"path": self.path()}
            self.changing(way)
            function(way["path"], *words)
            return
        slot = self.slot()
        self.changing_file(identity(os.fstat(slot.fd)), but=slot.fd)
        try:
            function(slot.fd, *words)
            self.said.append(self.attributes(os.fstat(slot.fd))[:5])
        finally:
            if slot.clean:
                self.slots = {n: s for n, s in self.slots.items() if s.fd != slot.fd}
                os.close(slot.fd)


# Operations that change files or names. `weight` makes them rare: a changed file is no longer read
# from its copy, so many changes would soon leave no copy to read.
CHANGES = {
    *("write", "pwrite", "truncate", "allocate", "write_map", "append", "copy_file", "sendfile"),
    *("copy_range", "rename", "rename_directory", "unlink", "link", "symlink", "mkdir", "rmdir"),
    *("chmod", "utime", "chown", "set_xattr", "remove_xattr"),
}


def weight(name: str) -> int:
    return 1 if name in CHANGES else 12 if name == "open" else 4


def answer(operation: Any) -> Any:
    try:
        return operation()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    except ValueError as error:  # an empty file cannot be mapped
        return str(error)


def main(root: str, seed: str, count: str, pauses: str) -> None:
    tree = Operations(Path(root), int(seed))
    os.chdir(tree.work)
    names = [name[3:] for name in dir(Operations) if name.startswith("do_")]
    weights = [weight(name) for name in names]
    every = int(count) // (int(pauses) + 1) + 1
    for number in range(int(count)):
        if number and number % every == 0:
            tree.forget()
            print("pause", flush=True)
            sys.stdin.readline()
        name = tree.random.choices(names, weights)[0]
        tree.said = []
        result = answer(getattr(tree, f"do_{name}"))
        tree.settle()
        said = str(tree.said).replace(str(tree.work), "WORK")
        print(f"{number} {name} {said} -> {result}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
