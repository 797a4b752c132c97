"""Small files that are filled ahead are read with O_DIRECT if their source makes readers wait."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from csrc.building import build_program
from support.epoch import Reader, make_files
from support.page_cache import cached_bytes
from support.session import Session, wait_until

from monarch_py.demo.slowsource import SlowSource

# There are so many files that most are read only after the first 32 have shown that the source
# makes readers wait. The last page of each file is not full.
COUNT, SIZE = 240, 40_007
Factory = Callable[..., Session]


@pytest.fixture
def source(slow_factory: Callable[..., SlowSource]) -> SlowSource:
    mounted = slow_factory(keep_pages=True)
    make_files(mounted.backing, COUNT, SIZE)
    mounted.latency(read=0.001)
    return mounted


@pytest.fixture(scope="module")
def no_direct_io(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = Path(__file__).with_name("programs") / "no_direct_io.c"
    flags = ["-D_GNU_SOURCE", "-shared", "-fPIC", "-ldl"]
    return build_program(tmp_path_factory.mktemp("built") / "no_direct_io.so", program, flags=flags)


def files_of(source: SlowSource) -> dict[int, Path]:
    return {number: source.mountpoint / str(number) for number in range(1, COUNT + 1)}


def read_all(session: Session, source: SlowSource, reader: Path) -> None:
    """Reads all files under the library, and compares every byte."""
    with Reader(reader, session, "read", 65536, 4, source.mountpoint, files_of(source)) as reading:
        reading.end()


def cached_files(source: SlowSource) -> int:
    return sum(cached_bytes(path) > 0 for path in files_of(source).values())


def fill(session: Session) -> None:
    """Waits until all files are filled. Checks that no file was filled twice."""
    session.wait_all_present()
    assert session.totals()["fills"] == COUNT


def test_most_files_leave_nothing_in_the_page_cache(
    session_factory: Factory, source: SlowSource, epoch_reader: Path
) -> None:
    """The first files are read through the page cache, until they have shown that the source makes
    readers wait. After that, only every 32nd file is read through the page cache."""
    session = session_factory(source.mountpoint, prefetch="eager").start()
    fill(session)
    assert source.counts()["bytes_read"] == COUNT * SIZE
    assert 20 < cached_files(source) < COUNT / 2
    read_all(session, source, epoch_reader)


def test_the_configuration_can_forbid_it(
    session_factory: Factory, source: SlowSource, epoch_reader: Path
) -> None:
    session = session_factory(source.mountpoint, prefetch="eager", direct_io=False).start()
    fill(session)
    assert source.counts()["bytes_read"] == COUNT * SIZE
    assert cached_files(source) == COUNT


LIMITS = [{}, {"source_limits": {"bandwidth": "20MB"}}, {"source_limits": {"operations": 600}}]


@pytest.mark.parametrize("limits", LIMITS)
def test_what_is_in_the_page_cache_is_not_read_again(
    session_factory: Factory, source: SlowSource, epoch_reader: Path, limits: dict[str, Any]
) -> None:
    """All files are in the page cache, so fills read hardly anything from the source. The waits for
    a rate limit must not count as waits for the source."""
    for path in files_of(source).values():
        path.read_bytes()
    source.reset()
    session = session_factory(source.mountpoint, prefetch="eager", **limits).start()
    fill(session)
    # The kernel may have dropped the pages of a few files, which are then read again.
    assert source.counts()["bytes_read"] < COUNT * SIZE / 20
    read_all(session, source, epoch_reader)


def test_a_file_that_a_program_has_read_is_not_read_again(
    session_factory: Factory, source: SlowSource, epoch_reader: Path
) -> None:
    """With `handover_size: 0`, the daemon reads files after programs have opened them, so it finds
    some of their bytes in the page cache."""
    session = session_factory(source.mountpoint, handover_size=0).start()
    session.wait_scanned()
    read_all(session, source, epoch_reader)
    fill(session)
    assert source.counts()["bytes_read"] == COUNT * SIZE
    assert cached_files(source) == COUNT


def test_files_that_became_shorter_do_not_end_it(
    session_factory: Factory, slow_factory: Callable[..., SlowSource]
) -> None:
    """Some files have become shorter since the scan. When the daemon reads such a file, it notices
    that the file ends early. It does not mistake this for a failure of O_DIRECT, and still reads
    the other files with O_DIRECT."""
    source = slow_factory(keep_pages=True, attr_timeout=60)
    make_files(source.backing, COUNT, SIZE)
    source.latency(read=0.001)
    session = session_factory(source.mountpoint).start()
    session.wait_scanned()
    for number in range(1, COUNT, 12):
        os.truncate(source.backing / str(number), SIZE // 2)
    session.monarch("warm")
    assert cached_files(source) < COUNT / 2


@pytest.mark.parametrize("fault", ["flag", "read", "short"])
def test_a_source_without_it(
    session_factory: Factory,
    source: SlowSource,
    epoch_reader: Path,
    no_direct_io: Path,
    fault: str,
) -> None:
    """If a file system does not support O_DIRECT, or returns fewer bytes than the file has, the
    files are read through the page cache."""
    session = session_factory(source.mountpoint, prefetch="eager")
    session.start(prefix=("env", f"LD_PRELOAD={no_direct_io}", f"NO_DIRECT_IO={fault}"))
    fill(session)
    wait_until(lambda: cached_files(source) == COUNT, what="pages of all files")
    # After the first failed read, O_DIRECT is no longer used. Only the files that were being read
    # at that moment were read twice.
    assert source.counts()["bytes_read"] < 1.5 * COUNT * SIZE
    read_all(session, source, epoch_reader)
