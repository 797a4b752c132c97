"""PackDataset: the files of a pack as samples, read from one tar instead of many small files."""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from monarch_py.loaders.records.dataset import RecordDataset
from monarch_py.loaders.records.reads import IN_FLIGHT
from monarch_py.packs.index import PackIndex
from monarch_py.plan.index import Index


class PackDataset(RecordDataset):
    """The files of a pack that `monarch pack` made. Sample i is the content of file i, as bytes::

        dataset = PackDataset("train.tar")
        loader = DataLoader(dataset, batch_size=64, num_workers=4, collate_fn=decode)

    Samples are numbered in the order of the tar, where the files of a directory follow each other,
    sorted by name. In the pack of an image folder, `dataset.names[i].split("/")[0]` is the class of
    sample i.

    names : the files' paths, relative to the directory that was packed

    path : the tar
    length : the number of samples in the training's access plan. If the pack has another number,
        ConfigError is raised
    join : one read covers two samples if at most this many unwanted bytes lie between them; 'auto'
        measures up to which gap one read is faster than two
    in_flight : the most reads that are under way at once

    The docstring of RecordDataset says how a batch is read, and which errors reads raise.
    The constructor raises ConfigError if the tar has no index or has changed since it was indexed.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        length: int | None = None,
        join: int | Literal["auto"] = "auto",
        in_flight: int = IN_FLIGHT,
    ) -> None:
        path = Path(path)
        pack = PackIndex.load(path)
        samples = np.zeros(len(pack), dtype=np.int32), pack.offsets, pack.sizes
        size = np.array([pack.pack_bytes], dtype=np.uint64)
        index = Index.of("fixed", path.parent, [path.name], size, samples)
        super().__init__(path, index=index, length=length, join=join, in_flight=in_flight)
        self._pack = pack
        self._names: list[str] | None = None

    @property
    def names(self) -> list[str]:
        if self._names is None:
            self._names = self._pack.names()
        return self._names

    def __getstate__(self) -> dict[str, Any]:
        # A pickle leaves out the list of names: a spawned worker makes the list from the index.
        return {**super().__getstate__(), "_names": None}
