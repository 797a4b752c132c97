"""Installs signal handlers, but only for signals that are not ignored.

Some signals are ignored when this program starts, for example under nohup or in a shell's
background job. They stay ignored in this program and in the processes that it starts.
"""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


def handle(numbers: Iterable[signal.Signals], handler: Handler | signal.Handlers) -> None:
    """Installs a handler for these signals, except for ignored ones. A signal may interrupt the
    handler and call it again, so the handler must not take a lock."""
    for number in numbers:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


@contextmanager
def handling(numbers: Iterable[signal.Signals], handler: Handler) -> Iterator[None]:
    """Installs a handler for the duration of a `with` statement, then restores the earlier
    handlers."""
    old = {number: signal.getsignal(number) for number in numbers}
    handle(old, handler)
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)
