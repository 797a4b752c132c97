"""What this program does when signals come. What whoever started it has it ignore (nohup, a shell's
background jobs) it goes on to ignore, and so does what it starts."""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Handler", "handle", "handling"]

Handler = Callable[[int, FrameType | None], object]


def handle(numbers: Iterable[signal.Signals], handler: Handler | signal.Handlers) -> None:
    """From here on. The handler may come a second time while it runs: it takes no lock."""
    for number in numbers:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


@contextmanager
def handling(numbers: Iterable[signal.Signals], handler: Handler) -> Iterator[None]:
    """In the block; then as before."""
    old = {number: signal.getsignal(number) for number in numbers}
    handle(old, handler)
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)
