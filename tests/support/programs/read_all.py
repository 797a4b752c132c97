"""Reads every file below a directory once, and prints as JSON what a program sees of each file.

usage: read_all.py DIRECTORY
"""

import errno
import hashlib
import json
import os
import sys
from typing import Any


def code_of(error: OSError) -> str:
    return errno.errorcode[error.errno or 0]


def look(path: str) -> dict[str, Any]:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as error:
        return {"open": code_of(error)}
    total, size = hashlib.sha256(), 0
    try:
        before = os.fstat(fd)
        while part := os.read(fd, 1 << 20):
            total.update(part)
            size += len(part)
        by_path = os.stat(path)
    except OSError as error:
        return {"read": code_of(error)}
    finally:
        os.close(fd)
    names = ("st_dev", "st_ino", "st_mode", "st_nlink", "st_uid", "st_size", "st_mtime_ns")
    return {
        "sha256": total.hexdigest(),
        "size": size,
        "fstat": [getattr(before, name) for name in names],
        "stat": [getattr(by_path, name) for name in names],
    }


def main() -> None:
    root = sys.argv[1]
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, root)] = look(path)
    json.dump(found, sys.stdout, sort_keys=True)


main()
