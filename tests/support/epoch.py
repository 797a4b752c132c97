"""Files in which every byte depends on its position, and the reader programs/epoch_reader.c."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from csrc.building import build_program

from support.session import Session

# A reader that the daemon neither serves nor refuses waits for 5 s (PATIENCE_NS in
# csrc/preload/fill/wait.c). All other readers wait for less than READER_LIMIT_S [s], even on a busy
# machine.
READER_LIMIT_S = 4.5

SOURCE = Path(__file__).resolve().parent / "programs" / "epoch_reader.c"


def content(seed: int, size: int) -> bytes:
    """Returns the content of a file; word_of() in programs/known_bytes.h computes the same."""
    v = np.uint64(seed << 32) | np.arange((size + 7) // 8, dtype=np.uint64)
    for _ in range(2):
        v = (v ^ (v >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    data: bytes = (v ^ (v >> np.uint64(32))).tobytes()
    return data[:size]


def make_files(root: Path, count: int, size: int, first: int = 1) -> dict[int, Path]:
    """Creates `count` files of `size` bytes below `root`. A file's name is its seed. Returns the
    paths by seed."""
    root.mkdir(exist_ok=True)
    made = {seed: root / str(seed) for seed in range(first, first + count)}
    for seed, path in made.items():
        path.write_bytes(content(seed, size))
    return made


def build_reader(directory: Path) -> Path:
    return build_program(directory / "epoch_reader", SOURCE, flags=["-O2", "-pthread"])


class Reader:
    """A running epoch_reader. Leaving the context ends the program.

    files : the seeds of the files below `root`; each file is named by its seed
    """

    def __init__(
        self,
        program: Path,
        session: Session,
        ways: str,
        chunk: int,
        threads: int,
        root: Path,
        files: Iterable[int],
        *,
        preload: bool = True,
        **environment: str,
    ) -> None:
        names = [f"{seed}:{root / str(seed)}" for seed in files]
        self.process = subprocess.Popen(
            [str(program), ways, str(chunk), str(threads), *names],
            env=session.env(preload, **environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def runs(self) -> bool:
        return self.process.poll() is None

    def end(self, timeout: float = 60) -> dict[str, Any]:
        """Waits for the reader's end, and checks that no byte is wrong or missing, that no call
        failed, and that nothing was written to standard error."""
        said, complaints = self.process.communicate(timeout=timeout)
        assert (self.process.returncode, complaints) == (0, "")
        found: dict[str, Any] = json.loads(said)
        assert {name: found[name] for name in ("wrong", "short", "errors")} == {
            "wrong": 0,
            "short": 0,
            "errors": 0,
        }, found
        return found
