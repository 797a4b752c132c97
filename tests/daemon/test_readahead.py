"""If a tier is slow, the daemon reads the tier's copies into the page cache before the programs of
a plan open them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from daemon.old_files import NUMBERED, OldFiles
from support.epoch import Reader
from support.files import Files
from support.manifests import wait_recorded
from support.page_cache import cached_bytes, forget_pages
from support.session import MIB, Session, wait_until

from monarch_py.demo.slowsource import SlowSource
from monarch_py.plan import Plan, PlanPart
from monarch_py.plan.index import Index
from monarch_py.plan.loader import Loader
from monarch_py.plan.samplers import Listed

(FILES, SIZE), EPOCHS = NUMBERED, 2
PART = 50  # the number of files that are read at a time
AREA = 2 * MIB
# Seven eighths of the staging area are for files. WINDOW files would fit, but the area's directory
# and rounding take some of the room. At least LEAST files fit.
WINDOW = AREA // 8 * 7 // SIZE
LEAST = WINDOW - 4


class Training:
    """A plan of two epochs over a source, and sessions that follow it."""

    def __init__(self, source: SlowSource, factory: Callable[..., Session], tmp_path: Path) -> None:
        self.source, self._factory, self._place = source, factory, tmp_path
        names = sorted(path.name for path in source.backing.iterdir())
        rng = np.random.default_rng(5)
        epochs = [rng.permutation(FILES) for _ in range(EPOCHS)]
        index = Index.of("files", source.mountpoint, names, [SIZE] * FILES)
        loader = Loader(Listed(FILES, np.array(epochs)), 1, 4, workers=1)
        self.plan = tmp_path / "plan.npz"
        Plan((index,), (PlanPart("training", 0, loader),), EPOCHS, 1).save(self.plan)
        self.orders = [[int(names[i]) for i in epoch] for epoch in epochs]

    def session(self, tier: Path) -> Session:
        """Returns a session whose tier has room for all files. The session is not started."""
        area = self._place / "area"
        for place in (tier, area):
            place.mkdir(exist_ok=True)
        quota = FILES * (SIZE + 8192) + MIB
        return self._factory(
            self.source.mountpoint,
            tiers=[{"mount_point": tier, "max_storage_quota": quota, "persistent": True}],
            staging={"mount_point": str(area), "max_storage_quota": AREA},
            plan=str(self.plan),
        )

    def read(self, program: Path, session: Session, files: list[int]) -> None:
        with Reader(program, session, "read", MIB, 1, self.source.mountpoint, files) as reader:
            reader.end()


@pytest.fixture
def training(
    session_factory: Callable[..., Session],
    slowsource_binary: Path,
    old_files: OldFiles,
    tmp_path: Path,
) -> Iterator[Training]:
    """A training run over files that are old enough for their copies to be recorded at once."""
    mountpoint = tmp_path / "mount"
    mountpoint.mkdir()
    old = Files(old_files.numbered).wait_until_old()
    with SlowSource(old.root, mountpoint, binary=slowsource_binary) as mounted:
        yield Training(mounted, session_factory, tmp_path)


def follow(session: Session) -> None:
    session.start()
    session.wait_scanned()
    wait_until(lambda: session.status()["plans"][0]["state"] == "following", what="the plan")


def fill(session: Session) -> dict[int, Path]:
    """Makes copies of all files and stops the daemon. Returns a dict: file number -> its copy."""
    follow(session)
    copies = wait_recorded(session, FILES)
    session.stop()
    return {int(name): path for name, path in copies.items()}


def is_cached(copy: Path) -> bool:
    """Returns whether all pages of the copy are in memory."""
    return cached_bytes(copy) >= copy.stat().st_size


def are_cached(copies: list[Path]) -> bool:
    return all(map(is_cached, copies))


def read_ahead(session: Session) -> int:
    return int(session.status()["staging"]["read_ahead"])


def test_what_is_used_next_is_in_memory_as_far_as_the_window_goes(
    training: Training, epoch_reader: Path, tmp_path: Path
) -> None:
    session = training.session(tmp_path / "tier")
    copies = fill(session)
    for copy in copies.values():
        forget_pages(copy)
    assert not any(map(is_cached, copies.values()))
    training.source.reset()
    follow(session)
    # The daemon orders the read-ahead of several files at a time. Wait until all ordered files are
    # in memory.
    wait_until(
        lambda: LEAST <= read_ahead(session) == sum(map(is_cached, copies.values())),
        what="the first files",
    )
    cached = {number for number, copy in copies.items() if is_cached(copy)}
    assert LEAST <= len(cached) <= WINDOW
    assert cached == set(training.orders[0][: len(cached)])
    order = [number for epoch in training.orders for number in epoch]
    for at in range(0, FILES, PART):
        # Drop the pages of all copies that were read so far. Such a copy is in memory for its next
        # use only if the daemon has read it again.
        for number in order[:at]:
            forget_pages(copies[number])
        training.read(epoch_reader, session, order[at : at + PART])
        soon = [copies[number] for number in order[at + PART :][: LEAST // 2]]
        wait_until(partial(are_cached, soon), what=f"the files after place {at + PART}")
    assert training.source.counts()["bytes_read"] == 0


def test_what_lies_in_memory_stays_as_it_is(training: Training, epoch_reader: Path) -> None:
    with TemporaryDirectory(dir="/dev/shm") as place:
        session = training.session(Path(place) / "tier")
        fill(session)
        follow(session)
        training.read(epoch_reader, session, training.orders[0])
        wait_until(lambda: session.status()["plans"][0]["position"] >= FILES // 2, what="the epoch")
        assert read_ahead(session) == 0
        session.stop()
