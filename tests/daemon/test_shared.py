"""Strings that the daemon writes into shared memory stay within their fields."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_py.daemon.segments import _put
from monarch_py.errors import SessionError
from monarch_py.ipc.session import shm_root
from monarch_py.native import ffi


def test_a_path_never_goes_beyond_its_room() -> None:
    control = ffi.new("struct monarch_control *")
    first, second = control.switch_file[0], control.switch_file[1]
    second[0] = b"!"
    assert _put(first, b"a" * 239) == 239
    assert (ffi.string(first), second[0]) == (b"a" * 239, b"!")
    assert _put(first, b"b") == 1
    assert ffi.string(first) == b"b"
    for n_bytes in (240, 1200):
        with pytest.raises(OSError, match="longer than 239 bytes"):
            _put(first, b"c" * n_bytes)
    assert (ffi.string(first), second[0]) == (b"b", b"!")


def test_shared_memory_of_a_long_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_SHM", "/" + "x" * 179)
    assert shm_root() == Path("/" + "x" * 179)
    monkeypatch.setenv("MONARCH_SHM", "/" + "x" * 180)
    with pytest.raises(SessionError, match="MONARCH_SHM has 181 bytes; at most 180 may be used"):
        shm_root()
