"""Reads files repeatedly, compares their bytes and prints the result of each pass as JSON.

usage: read_loop.py DIRECTORY EXPECTED     EXPECTED: JSON, relative path -> SHA-256

The program ends when its standard input ends. It reads each file in one of four ways: plain reads,
reads with offsets, a mapping, or Python's buffered file. The way changes with every pass.
"""

import hashlib
import json
import mmap
import os
import select
import sys
import time
from typing import Any


def plainly(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(fd, 1 << 18):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def with_offsets(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        return b"".join(os.pread(fd, 1 << 18, at) for at in range(0, size, 1 << 18))
    finally:
        os.close(fd)


def mapped(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        if not os.fstat(file.fileno()).st_size:
            return b""
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return view[:]


def buffered(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


WAYS = (plainly, with_offsets, mapped, buffered)


def one_pass(root: str, expected: dict[str, str], number: int) -> dict[str, Any]:
    wrong, longest, begun = [], 0.0, time.monotonic()
    for i, (name, digest) in enumerate(expected.items()):
        started = time.monotonic()
        try:
            data = WAYS[(i + number) % len(WAYS)](os.path.join(root, name))
        except OSError as error:
            wrong.append(f"{name}: {error}")
        else:
            if hashlib.sha256(data).hexdigest() != digest:
                wrong.append(f"{name}: {len(data)} other bytes")
        longest = max(longest, time.monotonic() - started)
    return {"begun_s": begun, "wrong": wrong, "longest_s": longest}


def main() -> None:
    root = sys.argv[1]
    with open(sys.argv[2]) as file:
        expected = json.load(file)
    number = 0
    while not select.select([0], [], [], 0)[0]:
        print(json.dumps(one_pass(root, expected, number)), flush=True)
        number += 1


main()
