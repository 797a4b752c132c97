"""Creates a daemon's shared-memory segments without a daemon, for tests of clients that outlive
many daemons."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

from monarch_py.config.load import load_config
from monarch_py.config.schema import Config
from monarch_py.daemon.segments import Shared
from monarch_py.native import lib
from support.session import Session


@cache
def _config(path: Path, _changed_ns: int) -> Config:
    """Returns the configuration. It is loaded again only when the file has changed, because loading
    takes as long as creating segments."""
    return load_config(path)


@contextmanager
def segments(session: Session, *, killed: bool = False) -> Iterator[Shared]:
    """Yields segments in the state SERVING, and closes them at the end of the context.

    killed : whether to leave the segments unchanged at the end, as a killed daemon does
    """
    with patch.dict(os.environ, MONARCH_SHM=str(session.shm)):
        session.paths.make()
        config = _config(session.config, session.config.stat().st_mtime_ns)
        shared = Shared(session.paths, config)
        shared.serve()
        try:
            yield shared
        finally:
            if not killed:
                shared.close()


def is_changed(shared: Shared, path: Path) -> bool:
    """Returns whether a client has recorded that the file was changed."""
    found = path.stat()
    return bool(lib.monarch_is_changed(shared.clients, found.st_dev, found.st_ino))


def newest_generation(session: Session) -> int:
    """Returns the number of the newest catalog whose segment is in the session's directory."""
    return max(int(path.suffix[1:]) for path in session.paths.path.glob("catalog.*"))
