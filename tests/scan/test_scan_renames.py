"""A program renames a directory while the daemon scans the source."""

from __future__ import annotations

import time
from collections.abc import Callable

from support.epoch import make_files
from support.session import Session, wait_until

from monarch_py.demo.slowsource import SlowSource

FILES = 1000
RENAME = "import os, sys; os.rename(sys.argv[1] + '/old', sys.argv[1] + '/new')"


def test_files_that_are_looked_up_again_do_not_keep_the_loop_waiting(
    session_factory: Callable[..., Session], slow_factory: Callable[..., SlowSource]
) -> None:
    """The scan's threads have examined some files, and the daemon's loop has not added them to the
    catalog yet. The rename may have changed the paths of these files. They are looked up at the
    source again, which takes long if the kernel keeps no attributes, but not in the loop."""
    source = slow_factory(attr_timeout=0)
    make_files(source.backing, FILES, 10)
    (source.backing / "old").mkdir()
    source.latency(getattr=0.01)
    session = session_factory(source.mountpoint).start()
    session.python(RENAME, source.mountpoint)
    longest_s, scanned = 0.0, False
    while not scanned:
        began_s = time.monotonic()
        scanned = session.status()["scanned"]
        longest_s = max(longest_s, time.monotonic() - began_s)
    assert longest_s < 2
    wait_until(lambda: session.status()["sources"][0]["absent"] == FILES, what="all files again")
