"""The daemon compares its catalog with the source in a thread. If the system cannot start this
thread, the daemon's loop goes on, and tries again later."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from support.session import wait_until

from monarch_py.daemon.scan.revalidation import Metadata


def test_the_loop_goes_on_and_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = SimpleNamespace(metadata="cached", revalidate_s=60)
    scanner: Any = SimpleNamespace(scanned=True, is_whole=True, began=0.0, sources=[])
    shared: Any = SimpleNamespace(
        control=SimpleNamespace(compared_ns=0), clients=SimpleNamespace(stale=1)
    )
    metadata = Metadata(config, shared, scanner)
    looked = threading.Event()
    monkeypatch.setattr(metadata, "_look", looked.set)

    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        metadata.step()
        metadata.step()
    assert not looked.is_set()
    metadata.step()
    wait_until(looked.is_set, what="the comparison")
    metadata.close()
