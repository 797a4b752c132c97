"""Sessions in which the catalog answers when programs list directories of the source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from csrc.building import build_program
from support.mounts import Mounts
from support.session import MIB, Session
from support.told import directories, wait_told
from transparent.trees import make_tree

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Stage:
    """A session, and directories of its source by name."""

    session: Session
    places: dict[str, Path]


@pytest.fixture(scope="session")
def listings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds listings.c and returns the path of the program."""
    directory = tmp_path_factory.mktemp("listings")
    return build_program(directory / "listings", HERE / "listings.c", flags=["-pthread"])


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A session over the tree of `make_tree`. Several tests share it, so none may change the
    source."""
    top = tmp_path_factory.mktemp("stage")
    places = make_tree(top / "source")
    with Session(top, top / "source") as session:
        session.start()
        wait_told(session)
        yield Stage(session, places)


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A session over a source that is a mount, with another mount below it."""
    top = tmp_path_factory.mktemp("mounted")
    with Mounts(top) as mounts:
        source = mounts.ext4("source", 64 * MIB)
        (source / "plain").mkdir()
        (source / "plain" / "file").write_bytes(b"file")
        inside = directories(source)
        below = Mounts(source)
        with below:
            (below.tmpfs("below", MIB) / "other").write_bytes(b"other")
            with Session(top, source) as session:
                session.start()
                wait_told(session, inside)
                places = {"root": source, "plain": source / "plain", "below": source / "below"}
                yield Stage(session, places)
