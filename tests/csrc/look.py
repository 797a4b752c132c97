"""Prints everything that a program sees in directories: names, attributes and content.

    python -I -S look.py DIRECTORY ...

The output is one JSON object: directory -> relative name -> attributes (from lstat and stat),
content, target and extended attributes. An item that cannot be read is replaced by the errno of the
attempt.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def attributes(look: Callable[[str], os.stat_result], path: str) -> Any:
    try:
        st = look(path)
    except OSError as error:
        return error.errno
    times = [] if os.path.isdir(path) else [st.st_mtime_ns, st.st_ctime_ns]
    return [st.st_mode, st.st_nlink, st.st_uid, st.st_gid, st.st_size, st.st_ino, st.st_dev, *times]


def content(path: str) -> Any:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return error.errno
    try:
        with open(fd, "rb", buffering=0, closefd=False) as file:
            data = file.readall()
        return [len(data), data.hex(), os.fstat(fd).st_ino]
    except OSError as error:
        return error.errno
    finally:
        os.close(fd)


def xattrs(path: str) -> Any:
    try:
        names = sorted(os.listxattr(path, follow_symlinks=False))
        return {n: os.getxattr(path, n, follow_symlinks=False).hex() for n in names}
    except OSError as error:
        return error.errno


def look_at(path: str) -> dict[str, Any]:
    return {
        "lstat": attributes(os.lstat, path),
        "stat": attributes(os.stat, path),
        "content": content(path),
        "target": os.readlink(path) if os.path.islink(path) else None,
        "xattrs": xattrs(path),
    }


def look_below(top: str) -> dict[str, Any]:
    found = {}
    for folder, directories, files in os.walk(top):
        for name in sorted(directories + files):
            path = os.path.join(folder, name)
            found[os.path.relpath(path, top)] = look_at(path)
    return found


if __name__ == "__main__":
    print(json.dumps({top: look_below(top) for top in sys.argv[1:]}))
