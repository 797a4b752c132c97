"""The index of the catalog contains, for each file, a guess of the file's copy. An open can use the
guess before it has read the file's entry. Even if the guess is wrong, the open must get the right
file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.files import Files
from support.session import Session
from support.watch import settle

from monarch_py.ipc.session import Segment

FILES = 40
SLOT = np.dtype([("place", np.uint64), ("copy", np.uint64)])
Guesses = npt.NDArray[np.uint64]

# For each file and each set of flags, prints the number of the descriptor, a digest of the content,
# and the inode and size from fstat. Then prints how many descriptors are open.
OPEN_ALL = """
import hashlib, json, os, sys
def look(path, *flags):
    fd = os.open(path, os.O_RDONLY | sum(flags))
    st = os.fstat(fd)
    found = [fd, hashlib.sha256(os.pread(fd, 1 << 20, 0)).hexdigest(), st.st_ino, st.st_size]
    os.close(fd)
    return found
paths = sorted(os.path.join(sys.argv[1], name) for name in os.listdir(sys.argv[1]))
found = [[look(path), look(path, os.O_NOFOLLOW), look(path, os.O_NOATIME)] for path in paths]
print(json.dumps([found, len(os.listdir("/proc/self/fd"))]))
"""


def look(session: Session, root: Path, *, preload: bool) -> Any:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", OPEN_ALL, str(root)],
        env=session.env(preload),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def of_others(guesses: Guesses) -> Guesses:
    """Gives each file the guess of another file. Only the lowest 8 bits of a guess stay unchanged,
    because they come from the hash of the file itself."""
    own = np.uint64(0xFF)
    others: Guesses = (np.roll(guesses, 1) & ~own) | (guesses & own)
    return others


def of_no_copy(guesses: Guesses) -> Guesses:
    gone: Guesses = guesses + np.uint64(1 << 40)
    return gone


def none(guesses: Guesses) -> Guesses:
    return np.zeros_like(guesses)


def noise(guesses: Guesses) -> Guesses:
    random = np.random.default_rng(7).integers(1, 2**63, len(guesses), dtype=np.uint64)
    some: Guesses = (random & ~np.uint64(0xFF)) | (guesses & np.uint64(0xFF))
    return some


@pytest.fixture
def session(session_factory: Callable[..., Session], tmp_path: Path) -> Session:
    root = Files(tmp_path / "source").add_many(FILES, 4000).root
    session = session_factory(root).start()
    session.want_all()
    session.wait_all_present()
    settle(session)
    return session


@pytest.mark.parametrize("wrong", [of_others, of_no_copy, none, noise])
def test_a_wrong_guess_is_never_seen(
    session: Session, tmp_path: Path, wrong: Callable[[Guesses], Guesses]
) -> None:
    root = tmp_path / "source"
    plain = look(session, root, preload=False)
    assert look(session, root, preload=True) == plain
    (path,) = session.paths.path.glob("catalog.*")
    segment = Segment.open(path, writable=True)
    c = segment.as_struct("struct monarch_catalog")
    index = np.frombuffer(segment.memory, SLOT, count=c.slots, offset=c.index_at)
    guessed = np.flatnonzero(index["copy"])
    assert len(guessed) == FILES
    index["copy"][guessed] = wrong(index["copy"][guessed])
    hits = session.totals()["hits"]
    assert look(session, root, preload=True) == plain
    # Every file was opened three times, and each open got the copy.
    assert session.totals()["hits"] >= hits + 3 * FILES
