"""Files of known content, and checks of what a program under the library reads from them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.session import Session, wait_until

PROGRAMS = Path(__file__).resolve().parent / "programs"
# READ_ALL reads everything once; READ_LOOP reads repeatedly until its standard input ends. The
# options -I and -S exclude the user's own Python configuration, and make the start several times
# faster.
READ_ALL = [sys.executable, "-I", "-S", str(PROGRAMS / "read_all.py")]
READ_LOOP = [sys.executable, "-I", "-S", str(PROGRAMS / "read_loop.py")]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def random_bytes(size: int, seed: object) -> bytes:
    """Returns random bytes that are determined by the seed."""
    return random.Random(repr(seed)).randbytes(size)


def age(root: Path) -> None:
    """Sets the times of all files below `root` to an hour ago, so that no part of Monarch waits for
    the files to settle. Adds a different number of nanoseconds to each file's time."""
    for number, path in enumerate(sorted(root.rglob("*"))):
        if path.is_file() and not path.is_symlink():
            when = time.time_ns() - 3_600_000_000_000 + number
            os.utime(path, ns=(when, when))


class Files:
    """A directory of files with known content.

    digests : relative path -> SHA-256
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.digests: dict[str, str] = {}
        root.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, size: int, version: int = 0) -> Path:
        """Writes a file of `size` bytes, or rewrites it in place."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = random_bytes(size, (name, version))
        path.write_bytes(data)
        self.digests[name] = digest(data)
        return path

    def add_many(self, count: int, size: int, prefix: str = "f") -> Files:
        for i in range(count):
            self.add(f"{prefix}{i:05d}", size)
        return self

    def path(self, name: str) -> Path:
        return self.root / name

    def wait_until_old(self, seconds: float = 4.1) -> Files:
        """Waits until all files are so old that the daemon records their copies in the manifest."""
        newest = max(path.stat().st_ctime for path in self.root.rglob("*"))
        wait_until(lambda: time.time() - newest > seconds, timeout=seconds + 5, what="old files")
        return self


def read_all(session: Session, root: Path, *, preload: bool = True, **more: Any) -> dict[str, Any]:
    """Returns what a program reads of each file, by relative path; see programs/read_all.py."""
    done = session.run([*READ_ALL, str(root)], preload=preload, **more)
    assert (done.returncode, done.stderr) == (0, ""), done
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check_all(session: Session, files: Files, root: Path | None = None) -> dict[str, Any]:
    """Checks that every file, read under the library, has its known bytes and the same attributes
    as without the library."""
    found = read_all(session, root or files.root)
    digests = {name: answer.get("sha256") for name, answer in found.items()}
    wrong = {name: found.get(name) for name, _ in digests.items() ^ files.digests.items()}
    assert not wrong, wrong
    assert found == read_all(session, root or files.root, preload=False)
    return found


def same_without(
    session: Session, argv: list[str], **more: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a program with and without the library, and checks that status, output and errors are
    the same."""
    with_it = session.run(argv, **more)
    without = session.run(argv, preload=False, **more)
    assert with_it.returncode == without.returncode, with_it
    assert (with_it.stdout, with_it.stderr) == (without.stdout, without.stderr)
    return with_it


class Loop:
    """A process under the library that repeatedly reads all files and compares their bytes."""

    def __init__(self, session: Session, files: Files, directory: Path) -> None:
        expected = directory / f"expected{time.monotonic_ns()}.json"
        expected.write_text(json.dumps(files.digests))
        self._errors = expected.with_suffix(".errors").open("a+")
        self.process = subprocess.Popen(
            [*READ_LOOP, str(files.root), str(expected)],
            env=session.env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.passes: list[Mapping[str, Any]] = []
        # This thread reads the output all the time, because a full pipe would block the process.
        self._drain = threading.Thread(target=self._listen)
        self._drain.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        self.passes.extend(json.loads(line) for line in self.process.stdout)

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._drain.join()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            assert stream is not None
            stream.close()

    def wait_passes(self, count: int = 2, timeout: float = 30) -> float:
        """Waits until the process has read all its files `count` more times, in passes that begin
        after this call. Returns the longest time [s] that the process took for one file."""
        now = time.monotonic()

        def done() -> list[Mapping[str, Any]] | None:
            assert self.process.poll() is None, f"the reader ended: {self.said()}"
            new = [p for p in self.passes if p["begun_s"] >= now]
            return new if len(new) >= count else None

        new = wait_until(done, timeout=timeout, what=f"{count} passes of the reader")
        assert [p["wrong"] for p in self.passes] == [[]] * len(self.passes)
        return max(float(p["longest_s"]) for p in new)

    def said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def end(self) -> None:
        """Ends the process. Checks that it exits with status 0, has read the right bytes and has
        written nothing to standard error."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self._drain.join()
        assert (self.process.returncode, self.said()) == (0, "")
        assert [p["wrong"] for p in self.passes] == [[]] * len(self.passes)


def du_bytes(root: Path) -> int:
    """Returns the result of `du -s --block-size=1`, without starting a process each time."""
    total = 0
    seen = set()
    for folder, _, names in os.walk(root):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            try:
                found = os.lstat(path)
            except OSError:
                continue
            if found.st_ino not in seen:
                seen.add(found.st_ino)
                total += found.st_blocks * 512
    return total


def make_tree(root: Path) -> Path:
    """Creates a small source: files of known content in nested directories, and links."""
    for directory in ("a", "a/b", "c"):
        (root / directory).mkdir(parents=True)
        for i in range(5):
            (root / directory / f"f{i}").write_bytes(f"{directory}/f{i}\n".encode() * (100 * i + 1))
    (root / "empty").touch()
    (root / "large").write_bytes(bytes(range(256)) * 20000)
    (root / "to_file").symlink_to("a/f1")
    (root / "to_directory").symlink_to("a/b")
    return root
