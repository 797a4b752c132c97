"""Files of known content, and what a program under the library reads of them."""

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
# Reads everything once; reads over and over until its standard input ends. -I and -S keep the
# user's own Python set-up out of them, and make them start in a fraction of the time.
READ_ALL = [sys.executable, "-I", "-S", str(PROGRAMS / "read_all.py")]
READ_LOOP = [sys.executable, "-I", "-S", str(PROGRAMS / "read_loop.py")]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def random_bytes(size: int, seed: object) -> bytes:
    """The same bytes for the same seed."""
    return random.Random(repr(seed)).randbytes(size)


def age(root: Path) -> None:
    """Makes all files below `root` an hour old, each by another number of nanoseconds, so that
    nobody waits until they are settled."""
    for number, path in enumerate(sorted(root.rglob("*"))):
        if path.is_file() and not path.is_symlink():
            when = time.time_ns() - 3_600_000_000_000 + number
            os.utime(path, ns=(when, when))


class Files:
    """A directory whose files' content is known. digests : relative path -> SHA-256."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.digests: dict[str, str] = {}
        root.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, size: int, version: int = 0) -> Path:
        """Writes (or rewrites in place) a file of `size` bytes."""
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
        """Waits until no file is so young that its copy is held back from the manifest."""
        newest = max(path.stat().st_ctime for path in self.root.rglob("*"))
        wait_until(lambda: time.time() - newest > seconds, timeout=seconds + 5, what="old files")
        return self


def read_all(session: Session, root: Path, *, preload: bool = True, **more: Any) -> dict[str, Any]:
    """Relative path -> what a program got from it; see programs/read_all.py."""
    done = session.run([*READ_ALL, str(root)], preload=preload, **more)
    assert (done.returncode, done.stderr) == (0, ""), done
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check_all(session: Session, files: Files, root: Path | None = None) -> dict[str, Any]:
    """Every file read under the library has its known bytes, and looks as it does without it."""
    found = read_all(session, root or files.root)
    digests = {name: answer.get("sha256") for name, answer in found.items()}
    wrong = {name: found.get(name) for name, _ in digests.items() ^ files.digests.items()}
    assert not wrong, wrong
    assert found == read_all(session, root or files.root, preload=False)
    return found


def same_without(
    session: Session, argv: list[str], **more: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a program with and without the library; status, output and errors must be the same."""
    with_it = session.run(argv, **more)
    without = session.run(argv, preload=False, **more)
    assert with_it.returncode == without.returncode, with_it
    assert (with_it.stdout, with_it.stderr) == (without.stdout, without.stderr)
    return with_it


class Loop:
    """A process under the library that reads all files over and over and compares their bytes."""

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
        # A full pipe would hold the reader up.
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
        """Until it has read everything `count` times from now on; returns the longest time that
        one file took [s]."""
        first = len(self.passes) + 1  # the one that runs began earlier

        def done() -> bool:
            assert self.process.poll() is None, f"the reader ended: {self.said()}"
            return len(self.passes) >= first + count

        wait_until(done, timeout=timeout, what=f"{count} passes of the reader")
        new = self.passes[first : first + count]
        assert [p["wrong"] for p in self.passes] == [[]] * len(self.passes)
        return max(float(p["longest_s"]) for p in new)

    def said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def end(self) -> None:
        """It ends with status 0, everything right and nothing on standard error."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self._drain.join()
        assert (self.process.returncode, self.said()) == (0, "")
        assert [p["wrong"] for p in self.passes] == [[]] * len(self.passes)


def du_bytes(root: Path) -> int:
    """What `du -s --block-size=1` says, without a process for every look."""
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
    """A small source: files of known content in nested directories, with links among them."""
    for directory in ("a", "a/b", "c"):
        (root / directory).mkdir(parents=True)
        for i in range(5):
            (root / directory / f"f{i}").write_bytes(f"{directory}/f{i}\n".encode() * (100 * i + 1))
    (root / "empty").touch()
    (root / "large").write_bytes(bytes(range(256)) * 20000)
    (root / "to_file").symlink_to("a/f1")
    (root / "to_directory").symlink_to("a/b")
    return root
