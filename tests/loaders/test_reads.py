"""read_all puts each byte in its place, raises one clear error, and works in threads and forked
children."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.session import wait_until

from monarch_py.arrays import Ints
from monarch_py.demo.slowsource import SlowSource
from monarch_py.errors import ConfigError
from monarch_py.loaders.records.reads import read_all

SIZE = 1 << 20
CONTENT = np.random.default_rng(5).bytes(SIZE)


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "content"
    path.write_bytes(CONTENT)
    opened = os.open(path, os.O_RDONLY)
    yield opened
    os.close(opened)


def back_to_back(lengths: Ints) -> Ints:
    return np.cumsum(lengths) - lengths


def read(descriptor: int, offsets: Any, lengths: Any, **options: int) -> bytes:
    offsets, lengths = np.asarray(offsets, np.int64), np.asarray(lengths, np.int64)
    out = bytearray(int(lengths.sum()))
    descriptors = np.full(len(offsets), descriptor, dtype=np.int32)
    read_all(descriptors, offsets, lengths, out, back_to_back(lengths), **options)
    return bytes(out)


def check(descriptor: int, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    offsets = rng.integers(0, SIZE - 5000, 100)
    lengths = rng.integers(0, 5000, 100)
    expected = b"".join(CONTENT[o : o + n] for o, n in zip(offsets, lengths, strict=True))
    assert read(descriptor, offsets, lengths) == expected


@given(
    st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE // 8)), max_size=40),
    st.integers(1, 300),
)
@settings(max_examples=50, deadline=None)
def test_each_read_brings_its_bytes(
    tmp_path_factory: pytest.TempPathFactory, reads: list[tuple[int, int]], in_flight: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "drawn"
    if not path.exists():
        path.write_bytes(CONTENT)
    reads = [(offset, min(length, SIZE - offset)) for offset, length in reads]
    opened = os.open(path, os.O_RDONLY)
    try:
        got = read(opened, [o for o, _ in reads], [n for _, n in reads], in_flight=in_flight)
    finally:
        os.close(opened)
    assert got == b"".join(CONTENT[o : o + n] for o, n in reads)


def test_reads_are_in_flight_together(slow_factory: Callable[..., SlowSource]) -> None:
    source = slow_factory()
    (source.backing / "content").write_bytes(CONTENT)
    source.latency(read=0.1)
    opened = os.open(source.mountpoint / "content", os.O_RDONLY | os.O_DIRECT)

    def are_together() -> bool:
        started = time.monotonic()
        assert read(opened, np.arange(16) * 65536, np.full(16, 65536)) == CONTENT
        took_s = time.monotonic() - started
        assert took_s >= 0.1
        return took_s < 0.8  # one after the other, the reads would take 1.6 s

    try:
        wait_until(are_together, what="reads in flight together")
    finally:
        os.close(opened)


def test_the_first_failure_is_raised_with_its_file(descriptor: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="ends before byte 1048677") as caught:
        read(descriptor, [0, SIZE - 10, SIZE + 5, 0], [10, 111, 1, 10])
    assert caught.value.filename == str(tmp_path / "content")
    assert caught.value.errno == errno.EIO
    check(descriptor)


def test_an_error_of_the_source_is_raised(tmp_path: Path) -> None:
    opened = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(IsADirectoryError, match=re.escape(str(tmp_path))):
            read(opened, range(40), [1] * 40)
    finally:
        os.close(opened)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"lengths": [2]}, "one of each"),
        ({"in_flight": 0}, "in_flight"),
        ({"offsets": [-1, 0]}, "negative"),
        ({"starts": [0, 4]}, "out: 4 bytes"),
    ],
)
def test_arguments_are_checked(descriptor: int, arguments: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"offsets": [0, 8], "lengths": [2, 2], "starts": [0, 2]} | arguments
    given = {k: np.array(v) if isinstance(v, list) else v for k, v in given.items()}
    with pytest.raises(ConfigError, match=said):
        read_all(np.full(2, descriptor, dtype=np.int32), out=bytearray(4), **given)


def test_a_buffer_that_cannot_be_written_is_refused(descriptor: int) -> None:
    one = np.zeros(1, dtype=np.int64)
    with pytest.raises((BufferError, ValueError)):
        read_all(one.astype(np.int32) + descriptor, one, one + 4, b"four", one)


def test_threads_read_at_once(descriptor: int) -> None:
    failed: list[BaseException] = []

    def many(seed: int) -> None:
        try:
            for turn in range(20):
                check(descriptor, seed * 100 + turn)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=many, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert not failed and not any(each.is_alive() for each in threads)


def test_forked_children_read_too(descriptor: int) -> None:
    """A forked child can read, even though the parent's reading threads do not exist in the child,
    and even if the parent was reading when it forked."""
    check(descriptor)
    stop = threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            check(descriptor)

    beside = threading.Thread(target=go_on)
    beside.start()
    try:
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=check, args=(descriptor, seed)) for seed in range(5)]
        for each in children:
            each.start()
        for each in children:
            each.join(30)
        assert [each.exitcode for each in children] == [0] * 5
    finally:
        stop.set()
        beside.join()


def test_reads_that_turn_slow_get_threads(slow_factory: Callable[..., SlowSource]) -> None:
    """Reads of cached files need no threads. If later reads are slow, several threads share
    them."""
    source = slow_factory()
    (source.backing / "content").write_bytes(CONTENT)
    opened = os.open(source.mountpoint / "content", os.O_RDONLY)

    def are_shared() -> bool:
        source.latency(read=0)
        for _ in range(2):
            assert read(opened, np.arange(8) * 65536, np.full(8, 65536)) == CONTENT[: 8 * 65536]
        source.latency(read=0.1)
        again = os.open(source.mountpoint / "content", os.O_RDONLY)  # drops the page cache
        started = time.monotonic()
        assert read(again, np.arange(16) * 65536, np.full(16, 65536)) == CONTENT
        took_s = time.monotonic() - started
        os.close(again)
        return took_s < 0.6  # one after the other, reads of 128 KiB would take 0.8 s

    try:
        wait_until(are_shared, what="reads that threads share")
    finally:
        os.close(opened)


def test_the_threads_take_no_signal(slow_factory: Callable[..., SlowSource]) -> None:
    source = slow_factory()
    (source.backing / "content").write_bytes(CONTENT)
    source.latency(read=0.02)
    opened = os.open(source.mountpoint / "content", os.O_RDONLY)
    assert read(opened, np.arange(16) * 65536, np.full(16, 65536)) == CONTENT
    os.close(opened)
    blocked = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended
            if (task / "comm").read_text() == "monarch-read\n":
                lines = (task / "status").read_text().splitlines()
                fields = dict(line.split(":", 1) for line in lines if line)
                blocked.append(int(fields["SigBlk"], 16))
    assert len(blocked) >= 7
    wanted = sum(1 << (number - 1) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM))
    assert all(mask & wanted == wanted for mask in blocked)
