"""A process that watches a source with fanotify sees reads of the source files, but no reads of
copies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.mounts import Mounts
from support.session import MIB, Session
from transparent import fanotify

# Reads each file by read, by pread and through a mapping.
READ = """
import mmap, os, sys
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    data = os.pread(fd, size, 0)
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapping:
        assert os.read(fd, size) == data == mapping[:]
    os.close(fd)
"""
COPIED, LEFT = ("copied", "copied_too"), ("left", "left_too")
READS = fanotify.OPEN | fanotify.ACCESS | fanotify.CLOSE_NOWRITE


class Watcher:
    """A process that runs fanotify.py on a directory."""

    def __init__(self, kind: str, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", fanotify.__file__, kind, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Watcher:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            said = self._process.communicate()[1]
            if "Operation not permitted" in said:
                pytest.skip("fanotify needs CAP_SYS_ADMIN")
            raise AssertionError(said)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def seen_of(self, session: Session, paths: list[Path], preload: bool) -> dict[str, int]:
        """Reads the files in a new process. Returns the events of this process that the watcher has
        seen: name of the file -> mask."""
        words = [sys.executable, "-I", "-S", "-c", READ, *map(str, paths)]
        with subprocess.Popen(words, env=session.env(preload)) as reader:
            assert reader.wait(60) == 0
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{reader.pid}\n")
        self._process.stdin.flush()
        found: dict[str, int] = json.loads(self._process.stdout.readline())
        return found


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A session over files that have copies (COPIED) and files that are excluded from copying
    (LEFT)."""
    with ExitStack() as stack:
        source = stack.enter_context(Mounts(tmp_path)).ext4("source", 32 * MIB)
        for name in COPIED + LEFT:
            (source / name).write_bytes(name.encode() * 10_000)
        served = {"path": str(source), "exclude": ["left*"]}
        session = stack.enter_context(Session(tmp_path, [served]))
        session.start().wait_all_present()
        yield session


@pytest.mark.parametrize("kind", ["directory", "mount", "asked"])
def test_what_reaches_the_source_is_seen(session: Session, kind: str) -> None:
    paths = [session.source / name for name in COPIED + LEFT]
    reads = READS | (fanotify.OPEN_PERM if kind == "asked" else 0)
    with Watcher(kind, session.source) as watcher:
        assert watcher.seen_of(session, paths, preload=False) == dict.fromkeys(COPIED + LEFT, reads)
        before = session.totals()["hits"]
        assert watcher.seen_of(session, paths, preload=True) == dict.fromkeys(LEFT, reads)
        assert session.totals()["hits"] == before + len(COPIED)
