"""The C code records the same checksums that the Python package xxhash computes. `monarch verify`
uses this package to check copies."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xxhash
from support.session import Session

from monarch_py.ipc.catalog import CatalogReader

BLOCK = 64 << 10
# Sizes around the ends of one block, of several blocks, and of the 1 MiB that `verify` reads at a
# time.
SIZES = sorted({max(0, n * BLOCK + d) for n in (0, 1, 3, 16, 17) for d in (-1, 0, 1)})


def expected(data: bytes) -> int:
    sums = [xxhash.xxh3_64_intdigest(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
    return int(xxhash.xxh3_64_intdigest(np.array(sums, dtype="<u8").tobytes()))


@pytest.fixture
def filled(session_factory: Callable[..., Session], tmp_path: Path) -> Session:
    source = tmp_path / "dataset"
    source.mkdir()
    for size in SIZES:
        (source / str(size)).write_bytes(random.Random(size).randbytes(size))
    session = session_factory(source, block_size=BLOCK)
    session.start().wait_all_present()
    return session


def test_the_recorded_sums_are_those_of_xxhash(filled: Session) -> None:
    catalog = CatalogReader.open(filled.paths, filled.connection.ask("where")["generation"])
    sums = {size: int(catalog.entries["sum"][catalog.find(0, str(size))]) for size in SIZES}
    assert sums == {size: expected((filled.source / str(size)).read_bytes()) for size in SIZES}


def test_verify_finds_the_same_sums(filled: Session) -> None:
    done = filled.monarch("verify", "--source")
    said = f"{len(SIZES)} copies checked, 0 damaged, 0 outdated\n"
    assert (done.returncode, done.stdout) == (0, said), done.stderr


@pytest.mark.parametrize("at", [0, BLOCK - 1, BLOCK, -1])
def test_verify_finds_one_other_bit(filled: Session, at: int) -> None:
    size = max(SIZES)
    copies = (filled.tiers[0] / f"monarch-{os.geteuid()}" / "c").iterdir()
    (copy,) = [path for path in copies if path.stat().st_size == size]
    content = bytearray(copy.read_bytes())
    content[at] ^= 1
    copy.chmod(0o600)
    copy.write_bytes(content)
    done = filled.monarch("verify")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"dropped a damaged copy of {filled.source}/{size}",
        f"{len(SIZES)} copies checked, 1 damaged",
    ]
