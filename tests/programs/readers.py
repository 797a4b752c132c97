"""Reads a dataset as real programs do, and prints what it has read.

    python readers.py NAME[,NAME...] DATASET     run these readers, in this order, in one process
    python readers.py --list                     the names of all readers

Between two readers, the program writes the line `next` and waits for a line on standard input.

The output depends only on the dataset. The tests compare the output of a run under the library with
the output of a run without the library.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Each of these modules registers its readers when it is imported.
import readers_calls  # noqa: F401
import readers_children  # noqa: F401
import readers_dali  # noqa: F401
import readers_formats  # noqa: F401
import readers_names  # noqa: F401
import readers_tensorflow  # noqa: F401
import readers_torch  # noqa: F401
from reader_kit import READERS, Transcript


def main(arguments: list[str]) -> int:
    """Runs the readers that `arguments` name. Returns 2 if the arguments are wrong, otherwise 0."""
    if arguments == ["--list"]:
        print("\n".join(sorted(READERS)))
        return 0
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    names, root = arguments[0].split(","), Path(arguments[1])
    unknown = [name for name in names if name not in READERS]
    if unknown:
        print(f"readers.py: no reader is called {', '.join(unknown)}", file=sys.stderr)
        return 2
    for turn, name in enumerate(names):
        if turn:
            print("next", flush=True)
            # Reads one byte, the newline of an empty line. A longer read could also take the
            # following line, which is meant for the next reader.
            os.read(0, 1)
        READERS[name](root, Transcript(name, root))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
