"""A program that serves one file until its standard input ends, and prints its port.

python holder.py PORT BYTES SEED      PORT 0: any free port;  BYTES 0: it shares no file
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # for the package benchmarks
sys.path.insert(0, str(Path(__file__).parents[1]))

from peers.offers import Offer, serve

from monarch_py.peers.server import listen

BLOCK = 1 << 20


def content(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def main() -> None:
    port, size, seed = map(int, sys.argv[1:])
    server = serve(listen("127.0.0.1", port))
    with Offer(content(size, seed)) as file:
        if size:
            file.share(server, block=BLOCK)
        print(server.address[1], flush=True)
        sys.stdin.read()
    server.close()


if __name__ == "__main__":
    main()
