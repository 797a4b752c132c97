"""A training program for benchmarks.simulator.replay. It does not use Monarch's API.

The program reads files in a random order that depends on a seed. After each file, it sleeps instead
of computing. It prints its measurements as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def read(path: str) -> int:
    with open(path, "rb") as file:
        return len(file.read())


def main() -> None:
    listing, epochs, batch, rate, threads, window, seed = sys.argv[1:]
    paths = Path(listing).read_text().split("\n")[:-1]
    shuffled, orders, seconds = random.Random(int(seed)), [], []
    debt = 0.0
    with ThreadPoolExecutor(max(1, int(threads))) as pool:
        for _ in range(int(epochs)):
            order = list(range(len(paths)))
            shuffled.shuffle(order)
            order = order[: len(order) // int(batch) * int(batch)]
            orders.append(order)
            begun = time.monotonic()
            ahead: deque[object] = deque()
            asked = 0
            for used, number in enumerate(order):
                if int(threads):
                    while asked < len(order) and asked < used + int(window):
                        ahead.append(pool.submit(read, paths[order[asked]]))
                        asked += 1
                    size = ahead.popleft().result()  # type: ignore[attr-defined]
                else:
                    size = read(paths[number])
                # A sleep takes longer than requested. The excess is subtracted from the next sleep.
                woken = time.monotonic() + size / float(rate) - debt
                time.sleep(max(0.0, woken - time.monotonic()))
                debt = time.monotonic() - woken
            seconds.append(time.monotonic() - begun)
    json.dump({"orders": orders, "epoch_seconds": seconds}, sys.stdout)


if __name__ == "__main__":
    main()
