"""If a symbolic link takes the place of a copy, programs do not follow the link, but read the
source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.session import Session

WAYS = """
import ctypes, mmap, os, sys
way, path = sys.argv[1:]
libc = ctypes.CDLL(None)
libc.fopen.restype = libc.freopen.restype = ctypes.c_void_p
libc.fgets.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
libc.freopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p]
line = ctypes.create_string_buffer(100)
if way == "open":
    line.value = os.read(os.open(path, os.O_RDONLY), 99)
elif way == "mmap":
    line.value = mmap.mmap(os.open(path, os.O_RDONLY), 0, prot=mmap.PROT_READ)[:]
else:
    stream = libc.fopen(path.encode() if way == "fopen" else b"/dev/null", b"re")
    if way == "freopen":
        stream = libc.freopen(path.encode(), b"r", stream)
    libc.fgets(line, 99, stream)
print(line.value.decode(), end="")
"""


@pytest.mark.parametrize("way", ["open", "mmap", "fopen", "freopen"])
def test_the_source_answers(
    session_factory: Callable[..., Session], tmp_path: Path, way: str
) -> None:
    root = tmp_path / "source"
    root.mkdir()
    (root / "a").write_text("right\n")
    (tmp_path / "planted").write_text("wrong\n")
    session = session_factory(root).start()
    session.wait_all_present()
    (copy,) = session.tiers[0].glob("monarch-*/c/*")
    assert session.python(WAYS, way, root / "a") == "right\n"
    copy.unlink()
    copy.symlink_to(tmp_path / "planted")
    assert session.python(WAYS, way, root / "a") == "right\n"
