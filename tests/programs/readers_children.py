"""Readers in other processes: inherited and passed descriptors, exec'd tools, forks, pools."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from io import FileIO
from pathlib import Path

from reader_kit import EXACT_ATTRIBUTES, Transcript, digest, mixed_files, reader, regular_files

# A program that reads the descriptors whose numbers are its arguments. For each descriptor, it
# prints the offset, the size, the digest and the attributes.
_CHILD = f"""
import hashlib, json, os, sys
for number in map(int, sys.argv[1:]):
    status = os.fstat(number)
    seen = {{name: getattr(status, name) for name in {EXACT_ATTRIBUTES!r}}}
    place = os.lseek(number, 0, os.SEEK_CUR)
    data = b"".join(iter(lambda: os.read(number, 65536), b""))
    print(json.dumps([place, len(data), hashlib.sha256(data).hexdigest(), seen]))
"""


def _in_fork(work: Callable[[], str]) -> str:
    """Runs `work` in a forked child and returns its result. Raises ChildProcessError if the child
    fails."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(receive)
            with os.fdopen(send, "w") as pipe:
                pipe.write(work())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            # sys.exit would run the parent's cleanup in the child.
            os._exit(status)
    os.close(send)
    with os.fdopen(receive) as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise ChildProcessError(f"the forked child ended with wait status {status}")
    return answer


@reader
def inherited_fd(root: Path, out: Transcript) -> None:
    """An exec'd child reads two inherited descriptors of each file. The parent has read a part of
    the file through one of the two descriptors, and has not used the other one."""
    paths = mixed_files(root)
    pairs = [(os.open(path, os.O_RDONLY), os.open(path, os.O_RDONLY)) for path in paths]
    numbers = [number for pair in pairs for number in pair]
    try:
        heads = [os.read(begun, 1000) for _, begun in pairs]
        child = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _CHILD, *map(str, numbers)],
            pass_fds=numbers,
            stdout=subprocess.PIPE,
            check=True,
        )
        seen = [json.loads(line) for line in child.stdout.splitlines()]
        for turn, (path, pair, head) in enumerate(zip(paths, pairs, heads, strict=True)):
            out.data(path, head, child=seen[2 * turn : 2 * turn + 2])
            # The child's reads have moved the offsets, which parent and child share.
            out.line(path, places=[os.lseek(number, 0, os.SEEK_CUR) for number in pair])
    finally:
        for number in numbers:
            os.close(number)


@reader
def standard_input(root: Path, out: Transcript) -> None:
    """A child reads each file as its standard input."""
    for path in mixed_files(root):
        with open(path, "rb") as file:
            child = subprocess.run(["cat"], stdin=file, stdout=subprocess.PIPE, check=True)
        out.data(path, child.stdout)


def _digest_of_next(file: FileIO, size: int) -> str:
    return digest(file.read(size))


@reader
def forked_fd(root: Path, out: Transcript) -> None:
    """A parent reads the first part of a file, its forked child continues, and then the parent
    continues where the child stopped."""
    for path in mixed_files(root):
        with open(path, "rb", buffering=0) as file:
            head = file.read(777)
            middle = _in_fork(partial(_digest_of_next, file, 100_000))
            rest = file.read()
            out.data(path, head + rest, middle=middle, offset=file.tell())


@reader
def forked_open(root: Path, out: Transcript) -> None:
    """Forked children, and a child of a forked child, open and read files themselves."""

    def everything() -> str:
        sums = hashlib.sha256()
        for path in mixed_files(root):
            sums.update(path.read_bytes())
        return sums.hexdigest()

    out.line("here", sha256=everything())
    for number in range(4):
        out.line(f"child {number}", sha256=_in_fork(everything))
    out.line("grandchild", sha256=_in_fork(lambda: _in_fork(everything)))


def _receive(channel: socket.socket) -> str:
    """Receives a descriptor from `channel`. Returns, as JSON, the digest of the file's bytes from
    the descriptor's offset to the end, and the file's attributes."""
    _, numbers, _, _ = socket.recv_fds(channel, 1, 1)
    with os.fdopen(numbers[0], "rb") as file:
        status = os.fstat(file.fileno())
        seen = {name: getattr(status, name) for name in EXACT_ATTRIBUTES}
        return json.dumps([digest(file.read()), seen])


@reader
def passed_fd(root: Path, out: Transcript) -> None:
    """A forked child gets a descriptor through SCM_RIGHTS, and reads it after the parent has closed
    its own descriptor."""
    for path in mixed_files(root):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            descriptor = os.open(path, os.O_RDONLY)
            os.lseek(descriptor, 1, os.SEEK_SET)
            socket.send_fds(ours, [b"f"], [descriptor])
            os.close(descriptor)
            out.line(path, child=json.loads(_in_fork(partial(_receive, theirs))))


@reader
def exec_child(root: Path, out: Transcript) -> None:
    """An exec'd cat opens the file itself."""
    for path in mixed_files(root):
        out.data(path, subprocess.check_output(["cat", "--", path]))


@reader
def exec_without_environment(root: Path, out: Transcript) -> None:
    """A child with an empty environment runs without the library, but inherits a descriptor that
    the library may have opened."""
    for path in mixed_files(root)[::4]:
        with open(path, "rb") as file:
            command = ["/bin/cat", "-", str(path)]
            out.data(path, subprocess.check_output(command, stdin=file, env={}))


def _tool(out: Transcript, root: Path, what: str, *command: str) -> None:
    """Runs a command in the dataset's root, and records the digest of its standard output, its exit
    status and its standard error."""
    done = subprocess.run(command, cwd=root, capture_output=True, check=False)
    out.data(what, done.stdout, status=done.returncode, stderr=done.stderr.decode())


@reader
def subprocess_tools(root: Path, out: Transcript) -> None:
    """Runs tools of job scripts: cat, cp, tar, md5sum, dd, stat, find, head, tail, cmp."""
    names = [str(path.relative_to(root)) for path in regular_files(root)]
    _tool(out, root, "cat", "cat", "--", *names)
    _tool(out, root, "md5sum", "md5sum", "--", *names)
    _tool(out, root, "wc", "wc", "-lc", "--", *names)
    _tool(out, root, "tar", "tar", "--sort=name", "-cf", "-", ".")
    _tool(out, root, "tar_h", "tar", "--sort=name", "-chf", "-", "links", "text")
    _tool(out, root, "stat", "stat", "-c", "%n %s %b %i %d %h %u %g %a %Y %Z", "--", *names)
    _tool(out, root, "find", "sh", "-c", r"find . -printf '%p %s %i %T@ %n\n' | sort")
    _tool(out, root, "ls", "ls", "-lRi", "--time-style=full-iso", ".")
    _tool(out, root, "cmp", "cmp", "edge/twin_a", "edge/twin_b")
    _tool(out, root, "sh", "sh", "-c", "while read line; do echo $line; done < text/lines_03.txt")
    for name in ("edge/block_and_one", "edge/empty", "edge/name with spaces.bin"):
        _tool(out, root, f"dd {name}", "dd", f"if={name}", "bs=70000", "status=none")
        _tool(out, root, f"dd skip {name}", "dd", f"if={name}", "bs=4096", "skip=2", "status=none")
        _tool(out, root, f"head {name}", "head", "-c", "5000", name)
        _tool(out, root, f"tail {name}", "tail", "-c", "5000", name)
    _tool(out, root, "missing", "cat", "edge/missing")
    with tempfile.TemporaryDirectory() as folder:
        _tool(out, root, "cp", "cp", "-a", ".", f"{folder}/tree")
        for path in regular_files(Path(folder)):
            status = path.stat()
            out.data(
                path.relative_to(folder),
                path.read_bytes(),
                mode=status.st_mode,
                links=status.st_nlink,
                mtime_ns=status.st_mtime_ns,
            )


def file_digest(path: Path) -> str:
    """Returns the digest of a file's content. Pools call this in their worker processes."""
    return digest(path.read_bytes())


def _pool(root: Path, out: Transcript, method: str) -> None:
    paths = mixed_files(root)
    with open(paths[0], "rb") as held:
        # The file is kept open, so that forked workers start with a descriptor of the dataset.
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            for path, found in zip(paths, pool.map(file_digest, paths), strict=True):
                out.line(path, sha256=found)
        out.data(paths[0], held.read())


@reader
def pool_fork(root: Path, out: Transcript) -> None:
    """Reads in a pool of two forked processes."""
    _pool(root, out, "fork")


@reader
def pool_spawn(root: Path, out: Transcript) -> None:
    """Reads in a pool of two spawned processes."""
    _pool(root, out, "spawn")


@reader
def pool_forkserver(root: Path, out: Transcript) -> None:
    """Reads in a pool of two processes of a fork server."""
    _pool(root, out, "forkserver")
