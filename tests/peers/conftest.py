"""Fixtures that make servers and files, and close them when the test ends."""

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
    """Yields a function that starts a server on this machine: server_factory(**settings), with the
    settings of FileServer."""
    before = len(os.listdir("/proc/self/fd"))
    with ExitStack() as stack:

        def make(**settings: Any) -> FileServer:
            server = serve(listen("127.0.0.1"), **settings)
            stack.callback(server.close)
            return server

        yield make
    # Up to 40 more descriptors are allowed, because the test's peers and files may still be open.
    assert len(os.listdir("/proc/self/fd")) <= before + 40, "servers leave descriptors behind"


@pytest.fixture
def server(server_factory: Callable[..., FileServer]) -> FileServer:
    return server_factory()


@pytest.fixture
def offer() -> Iterator[Callable[..., Offer]]:
    """Yields a function that makes a file in memory: offer(content, number=1)."""
    with ExitStack() as stack:
        yield lambda *args, **more: stack.enter_context(Offer(*args, **more))
