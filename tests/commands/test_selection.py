"""The selection of files by paths, in a catalog that grows while it is searched."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from monarch_py.arrays import ENTRY
from monarch_py.commands.selection import PathSelection
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.native import Kind


class Growing:
    """A catalog of files that grows by two files each time its length is read, and each time a file
    is looked up."""

    def __init__(self) -> None:
        self.entries = np.zeros(100, dtype=ENTRY)
        self.entries["kind"], self.entries["path_len"] = Kind.FILE, 5
        self.length = 0

    def __len__(self) -> int:
        self.length += 2
        return self.length

    def find(self, source: int, path: str) -> int:
        self.length += 2
        return self.length - 1 if path == "new" else -1


def test_files_that_come_between_two_looks_are_met_at_the_next() -> None:
    catalog = Growing()
    reader = cast(CatalogReader, cast(Any, catalog))
    everything = PathSelection([("/data",)], None, reader)
    met = np.concatenate([everything.meet(reader) for _ in range(3)])
    assert met.tolist() == list(range(catalog.length))


def test_a_file_that_is_found_last_of_all_is_met_at_once(tmp_path: Any) -> None:
    (tmp_path / "new").write_bytes(b"x")
    catalog = Growing()
    catalog.find = lambda source, path: -1  # type: ignore[method-assign]
    reader = cast(CatalogReader, cast(Any, catalog))
    named = PathSelection([(str(tmp_path),)], [str(tmp_path / "new")], reader)
    assert list(named.unknown) == [(0, "new")]
    del catalog.find
    entry = catalog.length + 3  # `meet` reads the length, then looks up the file
    assert named.meet(reader).tolist() == [entry]
    assert not named.unknown
