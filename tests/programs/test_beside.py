"""Programs read the same data even if LD_PRELOAD has other libraries before or after Monarch's."""

from __future__ import annotations

import ctypes.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.session import Session

Factory = Callable[..., Session]

# The name of each library for the linker, and the Debian package that contains it.
OTHERS = {
    "jemalloc": "libjemalloc2",
    "tcmalloc_minimal": "libtcmalloc-minimal4",
    "eatmydata": "libeatmydata1",
}
# Reads every file in several ways, in threads and in a child process, and writes and syncs a file.
PROGRAM = """
import hashlib, mmap, os, subprocess, sys, threading
root, out = sys.argv[1:]
paths = sorted(os.path.join(d, f) for d, _, names in os.walk(root) for f in names)
said = {}
def read(path):
    with open(path, "rb") as file:
        data = file.read()
        assert os.fstat(file.fileno()).st_size == len(data)
        assert os.pread(file.fileno(), 100, 7) == data[7:107]
        if data:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                assert mapped[:] == data
    said[path] = hashlib.sha256(data).hexdigest()
for _ in range(5):
    threads = [threading.Thread(target=read, args=(p,)) for p in paths]
    [t.start() for t in threads]; [t.join() for t in threads]
for path in paths:
    print(os.path.relpath(path, root), said[path], os.stat(path).st_ino == os.lstat(path).st_ino)
with open(out, "wb") as file:
    file.write(bytes(100000)); file.flush(); os.fsync(file.fileno())
child = subprocess.run(["sha256sum", *[p for p in paths if not os.path.islink(p)]],
                       capture_output=True, text=True)
print(child.stdout.replace(root, ""), child.stderr, child.returncode)
"""


def library(name: str) -> str:
    found = ctypes.util.find_library(name)
    if found is None:
        pytest.skip(f"lib{name} is not installed: apt-get install {OTHERS[name]}")
    return found


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("name", OTHERS)
def test_another_library_beside_ours(
    session_factory: Factory, tree: Path, tmp_path: Path, name: str, order: str
) -> None:
    other = library(name)
    session = session_factory(tree, prefetch="eager").start()
    session.wait_scanned()
    session.wait_all_present()

    def run(preload: list[str]) -> subprocess.CompletedProcess[str]:
        env = session.env(LD_PRELOAD=" ".join(preload))
        words = [sys.executable, "-c", PROGRAM, str(tree), str(tmp_path / "out")]
        return subprocess.run(
            words, env=env, capture_output=True, text=True, timeout=120, check=False
        )

    ours = str(session.preload)
    before = session.totals()["hits"]
    alone = run([other])
    together = run([other, ours] if order == "before" else [ours, other])
    assert (alone.returncode, alone.stderr) == (0, "")
    assert (together.returncode, together.stderr) == (0, "")
    assert together.stdout == alone.stdout
    assert session.totals()["hits"] - before >= 5 * 16
