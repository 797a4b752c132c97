"""Ranks that read like those of train_ranks.py, but do not load torch, which takes seconds.

    python read_ranks.py OUT RANKS RANK:DATASET ...

DATASET : the dataset as this rank sees it, a directory that contains a directory of files for each
class;  OUT : a directory that all ranks share.

Each rank writes OUT/RANK: a digest of each batch, and a digest of all that the ranks have read. The
ranks wait for each other after each batch. If the command line names several ranks, the program
forks a process for each rank but the first.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

EPOCHS = 2
SEED = 1234
BATCH = 8
PAUSE_S = 0.002


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def loaded(batches: list[list[Path]]) -> Iterator[str]:
    """Yields a digest of each batch. A forked worker reads the batches ahead."""
    mine, workers = os.pipe()
    worker = os.fork()
    if worker == 0:
        os.close(mine)
        for batch in batches:
            data = b"".join(path.read_bytes() for path in batch)
            os.write(workers, f"{digest(data)}\n".encode())
        os._exit(0)
    os.close(workers)
    with os.fdopen(mine) as lines:
        yield from (line.strip() for line in lines)
    if os.waitpid(worker, 0)[1]:
        sys.exit("a worker has failed")


def exchange(out: Path, step: int, ranks: int, rank: int, said: str) -> bytes:
    """Returns what all ranks have written after this step, in the order of the ranks."""
    whole, part = out / f"{step}.{rank}", out / f"{step}.{rank}.part"
    part.write_text(said)
    part.rename(whole)
    everybody = [out / f"{step}.{number}" for number in range(ranks)]
    while not all(path.exists() for path in everybody):
        time.sleep(PAUSE_S)
    return b"".join(path.read_bytes() for path in everybody)


def be_rank(out: Path, ranks: int, rank: int, root: Path) -> None:
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    lines, weights, step = [], b"", 0
    for epoch in range(EPOCHS):
        order = random.Random(SEED + epoch).sample(paths, len(paths))[rank::ranks]
        batches = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]
        for said in loaded(batches):
            weights = digest(weights + exchange(out, step, ranks, rank, said)).encode()
            lines.append(f"batch {epoch} {said}")
            step += 1
    (out / str(rank)).write_text("\n".join([*lines, f"end {weights.decode()}"]))


def main() -> None:
    out, ranks = Path(sys.argv[1]), int(sys.argv[2])
    mine = [(int(rank), Path(root)) for rank, root in (word.split(":") for word in sys.argv[3:])]
    others = []
    for rank, root in mine[1:]:
        child = os.fork()
        if child == 0:
            be_rank(out, ranks, rank, root)
            os._exit(0)
        others.append(child)
    be_rank(out, ranks, *mine[0])
    if any(os.waitpid(child, 0)[1] for child in others):
        sys.exit("a rank has failed")


if __name__ == "__main__":
    main()
