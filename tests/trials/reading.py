"""Runs processes of reader.c, which read until the test ends them, and checks their state."""

from __future__ import annotations

import mmap
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from csrc.building import build_program
from support.epoch import SOURCE, content
from support.session import Session, wait_until

READER = Path(__file__).parent / "reader.c"
# WORDS: the fields of `struct state` in reader.c. WAYS: the ways in which reader.c can read. Both
# are in the same order as in reader.c.
WORDS = ("operations", "wrong", "errors", "last", "longest_ns", "leaked")
WAYS = ("read", "pread", "mmap", "stdio", "stat", "readdir", "dup", "fork", "held")
MOST_THREADS = 16
CALL = struct.Struct("Q16s")
# The longest time [s] that one call of a reader may take if the reader was not stopped.
CALL_LIMIT_S = 6.0


def build_reader(directory: Path) -> Path:
    flags = ["-O2", "-pthread", f"-I{SOURCE.parent}"]
    return build_program(directory / "reader", READER, flags=flags)


def make_known(root: Path, sizes: Mapping[int, int]) -> None:
    """Creates files that are named by their seeds.

    sizes : seed -> size [bytes]
    """
    for seed, size in sizes.items():
        (root / str(seed)).write_bytes(content(seed, size))


class Reading:
    """A process of reader.c. If it still runs when the context ends, it is killed. It must write
    nothing to standard error.

    sizes : seed -> size [bytes] of the files in `root`
    prefix : words before the program, for example to run it in a cgroup or namespace
    preload : whether to preload the library; False if the program in `prefix` preloads it
    """

    def __init__(
        self,
        program: Path,
        session: Session,
        root: Path,
        sizes: Mapping[int, int],
        state: Path,
        *,
        seed: int,
        threads: int = 3,
        pause_us: int = 2000,
        prefix: Sequence[str] = (),
        preload: bool = True,
    ) -> None:
        state.write_bytes(bytes(8 * (len(WORDS) + MOST_THREADS) + CALL.size * MOST_THREADS))
        with state.open("r+b") as file:
            self._state = mmap.mmap(file.fileno(), 0)
        self.session, self.state, self._threads = session, state, threads
        names = [f"{number}:{size}:{root / str(number)}" for number, size in sizes.items()]
        self.process = subprocess.Popen(
            [*prefix, str(program), str(state), str(seed), str(threads), str(pause_us), *names],
            # Suppresses the warning of a process that finds no daemon; these tests do not check it.
            env=session.env(preload, MONARCH_WARNED="1"),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self._state.close()

    def _words(self) -> dict[str, int]:
        return dict(zip(WORDS, struct.unpack_from(f"{len(WORDS)}Q", self._state), strict=True))

    def _laps(self) -> tuple[int, ...]:
        return struct.unpack_from(f"{self._threads}Q", self._state, 8 * len(WORDS))

    def calls(self) -> dict[str, float]:
        """Returns the calls in progress: name of the call -> the longest time for which a thread
        has been in this call [s]."""
        offset, now_ns = 8 * (len(WORDS) + MOST_THREADS), time.monotonic_ns()
        found: dict[str, float] = {}
        for number in range(self._threads):
            began_ns, name = CALL.unpack_from(self._state, offset + number * CALL.size)
            if began_ns:
                word = name.rstrip(b"\0").decode()
                found[word] = max(found.get(word, 0.0), (now_ns - began_ns) / 1e9)
        return found

    def longest_s(self) -> float:
        """Returns the longest time of a call so far, including calls in progress [s]."""
        return max(self._words()["longest_ns"] / 1e9, *self.calls().values(), 0.0)

    def check(self) -> int:
        """Asserts that the reader runs and nothing was wrong; returns the number of its
        operations."""
        operations = self.check_words()
        assert self.process.poll() is None, f"the reader ended with {self.process.returncode}"
        return operations

    def check_words(self) -> int:
        """Like `check`, except that the reader's process may have ended."""
        found = self._words()
        way, errno = WAYS[found["last"] >> 32], found["last"] & 0xFFFFFFFF
        assert not (found["wrong"] or found["errors"]), f"{found}: by {way}, errno {errno}"
        longest_s = self.longest_s()
        assert longest_s < CALL_LIMIT_S, (
            f"state {found}, calls in progress {self.calls()}: one call takes {longest_s:.1f} s"
        )
        return found["operations"]

    def wait_laps(self, count: int = 1, timeout: float = 60) -> None:
        """Waits until each thread has read all files `count` more times."""
        first = self._laps()

        def done() -> bool:
            self.check()
            return all(n > f + count for n, f in zip(self._laps(), first, strict=True))

        wait_until(done, timeout=timeout, what=f"{count} laps of the reader")

    def end(self, timeout: float = 60) -> None:
        """Ends the process, and asserts that nothing was wrong and no descriptor was left open."""
        self.check()
        said = self.finish(timeout)
        assert (self.process.returncode, said) == (0, "")

    def finish(self, timeout: float = 60) -> str:
        """Like `end`, but the process may have ended with any status. Returns its messages."""
        _, said = self.process.communicate(timeout=timeout)
        found = self._words()
        assert not any(found[name] for name in ("wrong", "errors", "leaked")), found
        return said
