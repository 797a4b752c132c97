"""Servers that end with their test, and leave no thread, descriptor or file behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from peers.offers import Offer, serve

from benchmarks.peers.fileserver import FileServer
from monarch_py.peers.server import listen


@pytest.fixture
def server_factory() -> Iterator[Callable[..., FileServer]]:
    """Makes servers on this machine: server_factory(**FileServer's settings)."""
    before = len(os.listdir("/proc/self/fd"))
    with ExitStack() as stack:

        def make(**settings: Any) -> FileServer:
            server = serve(listen("127.0.0.1"), **settings)
            stack.callback(server.close)
            return server

        yield make
    # Peers and offers of the test's own end before, or are few.
    assert len(os.listdir("/proc/self/fd")) <= before + 40, "servers leave descriptors behind"


@pytest.fixture
def server(server_factory: Callable[..., FileServer]) -> FileServer:
    return server_factory()


@pytest.fixture
def offer() -> Iterator[Callable[..., Offer]]:
    """Makes files: offer(content, number=1)."""
    with ExitStack() as stack:
        yield lambda *args, **more: stack.enter_context(Offer(*args, **more))
