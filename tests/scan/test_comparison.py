"""The comparison of catalog entries with the source: which changes of a file or directory it finds,
and how threads divide the work."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from csrc.known import Known

from monarch_py.arrays import ENTRY, pointer
from monarch_py.native import ffi, lib


def compare(
    known: Known, ids: list[int], root: Path, *, threads: int = 2, ops_per_s: int = 0
) -> tuple[list[int], Any]:
    """Compares the entries `ids` with the source `root`. Returns, for each entry, what has become
    of its file, and the file's new attributes."""
    found, fresh = np.zeros(len(ids), np.uint8), np.zeros(len(ids), ENTRY)
    numbers = np.array(ids, np.uint64)
    roots = ffi.new("int32_t[1]", [os.open(root, os.O_RDONLY)])
    try:
        told = pointer(found), pointer(fresh)
        limits = threads, ops_per_s, 30 * 10**9
        n = lib.monarch_compare(known.c, roots, len(ids), pointer(numbers), *limits, *told)
    finally:
        os.close(roots[0])
    assert n == len(ids)
    return found.tolist(), fresh


def replace(path: Path) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(path.read_bytes())
    new.rename(path)


def swap(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Returns a change that removes a file or directory and calls `make` to create another one in
    its place."""

    def change(path: Path) -> None:
        path.rmdir() if path.is_dir() else path.unlink()
        make(path)

    return change


CHANGES: dict[str, tuple[Callable[[Path], object], int]] = {
    "file/read": (Path.read_bytes, lib.MONARCH_SAME),
    "file/written": (lambda path: path.write_bytes(b"longer"), lib.MONARCH_REPLACED),
    "file/times": (lambda path: os.utime(path, ns=(1, 1)), lib.MONARCH_REPLACED),
    "file/mode": (lambda path: path.chmod(0o400), lib.MONARCH_REPLACED),
    "file/replaced": (replace, lib.MONARCH_REPLACED),
    "file/gone": (Path.unlink, lib.MONARCH_GONE),
    "file/directory": (swap(Path.mkdir), lib.MONARCH_GONE),
    "file/link": (swap(lambda path: path.symlink_to("read")), lib.MONARCH_GONE),
    "file/fifo": (swap(os.mkfifo), lib.MONARCH_GONE),
    "directory/listed": (os.listdir, lib.MONARCH_SAME),
    "directory/larger": (lambda path: (path / "new").touch(), lib.MONARCH_REPLACED),
    "directory/gone": (Path.rmdir, lib.MONARCH_GONE),
    "directory/file": (swap(Path.touch), lib.MONARCH_GONE),
}


def test_what_a_comparison_finds(tmp_path: Path) -> None:
    for what in CHANGES:
        path = tmp_path / what
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x") if path.parent.name == "file" else path.mkdir()
    known = Known(tmp_path)
    ids = [known.find(what.encode()) for what in CHANGES]
    for what, (change, _) in CHANGES.items():
        change(tmp_path / what)
    found, fresh = compare(known, ids, tmp_path)
    assert dict(zip(CHANGES, found, strict=True)) == {
        what: is_ for what, (_, is_) in CHANGES.items()
    }
    for what, result, entry in zip(CHANGES, found, fresh, strict=True):
        if result == lib.MONARCH_REPLACED:
            now = (tmp_path / what).stat()
            assert (entry["ino"], entry["mtime_ns"]) == (now.st_ino, now.st_mtime_ns)


def test_what_lay_in_a_directory_that_is_a_file_now_is_gone(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory/file").touch()
    known = Known(tmp_path)
    (tmp_path / "directory/file").unlink()
    (tmp_path / "directory").rmdir()
    (tmp_path / "directory").touch()
    assert compare(known, [known.find(b"directory/file")], tmp_path)[0] == [lib.MONARCH_GONE]


def test_a_comparison_uses_as_many_threads_as_it_may(tmp_path: Path) -> None:
    """A comparison uses the calling thread and one more thread for every 32 entries, up to the
    given number of threads in all."""
    (tmp_path / "file").touch()
    known = Known(tmp_path)
    entry = known.find(b"file")
    for threads, entries, right in ((3, 200, 3), (1, 200, 1), (5, 64, 3), (5, 31, 1)):
        before, most = set(os.listdir("/proc/self/task")), 0
        given = {"threads": threads, "ops_per_s": 10 * entries}  # the comparison takes 0.1 s
        words = known, [entry] * entries, tmp_path
        caller = threading.Thread(target=compare, args=words, kwargs=given)
        caller.start()
        while caller.is_alive():
            most = max(most, len(set(os.listdir("/proc/self/task")) - before))
            time.sleep(0.001)
        assert most == right
