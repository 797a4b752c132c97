"""The segments of a daemon without the daemon: what many of them, one after the other, do to a
process that lives through them all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from monarch_py.config.load import load_config
from monarch_py.daemon.segments import Shared
from monarch_py.native import lib
from support.session import Session


@contextmanager
def segments(session: Session, *, killed: bool = False) -> Iterator[Shared]:
    """They serve until the context ends; those of a killed daemon are left as they were."""
    with patch.dict(os.environ, MONARCH_SHM=str(session.shm)):
        session.paths.make()
        shared = Shared(session.paths, load_config(session.config))
        shared.serve()
        try:
            yield shared
        finally:
            if not killed:
                shared.close()


def is_changed(shared: Shared, path: Path) -> bool:
    """Whether somebody has recorded that the file was changed."""
    found = path.stat()
    return bool(lib.monarch_is_changed(shared.clients, found.st_dev, found.st_ino))


def newest_generation(session: Session) -> int:
    """The number of the newest catalog whose segment lies in the session's directory."""
    return max(int(path.suffix[1:]) for path in session.paths.path.glob("catalog.*"))
