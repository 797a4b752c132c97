"""Trees with everything that a directory can hold."""

from __future__ import annotations

import os
import socket
from pathlib import Path

# Names that are not valid UTF-8, names with unusual characters, and names of the maximum length.
ODD_NAMES = [
    b"\xff\xfe not text \x80",
    "schöner Name 数据".encode(),
    b" leading and trailing ",
    b"new\nline",
    b"-l",
    b"...",
    b"..hidden",
    b"%41",
    b"n" * 255,
    b"\xfe" * 255,
]
MANY = 10_000
DEPTH = 60


def make_kinds(root: Path) -> None:
    """Makes files of several kinds, and symbolic links to several kinds of targets."""
    root.mkdir()
    (root / "file").write_bytes(b"content")
    (root / "empty").touch(mode=0o600)
    (root / "directory").mkdir(mode=0o750)
    (root / "directory" / "below").write_bytes(b"below")
    (root / "hollow").mkdir()
    os.mkfifo(root / "fifo", 0o640)
    here = os.open(root, os.O_RDONLY)
    # the path of a socket has at most 107 bytes, so this path uses a descriptor of the directory
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{here}/socket")
    finally:
        os.close(here)
    os.link(root / "file", root / "hard")
    for name, target in {
        "to_file": "file",
        "to_directory": "directory",
        "to_fifo": "./fifo",
        "to_nothing": "nothing/at/all",
        "to_above": "../kinds/directory/../file",
        "to_far": "/dev/null",
        "to_itself": "to_itself",
        "absolute": str(root / "directory" / "below"),
        "long": "x" * 4000,
    }.items():
        (root / name).symlink_to(target)


def make_tree(root: Path) -> dict[str, Path]:
    """Makes the complete tree. Returns a dictionary: name -> one of the tree's directories, for
    tests that list only that directory."""
    root.mkdir()
    make_kinds(root / "kinds")
    odd = root / "odd"
    odd.mkdir()
    for name in ODD_NAMES:
        place = os.path.join(os.fsencode(odd), name)
        os.mkdir(place)
        with open(os.path.join(place, name), "wb") as file:
            file.write(name)
    many = root / "many"
    many.mkdir()
    for i in range(MANY):
        os.close(os.open(many / f"{i * 7919 % MANY:05d}.jpg", os.O_CREAT | os.O_WRONLY, 0o644))
    deep = root / "deep"
    for level in range(DEPTH):
        deep.mkdir()
        (deep / "file").write_bytes(b"%d" % level)
        deep = deep / f"level{level}"
    return {
        "root": root,
        "kinds": root / "kinds",
        "hollow": root / "kinds" / "hollow",
        "odd": odd,
        "many": many,
        "deep": deep.parent,
    }
