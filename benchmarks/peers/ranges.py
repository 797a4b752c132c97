"""Fetches ranges of files from a peer, many ranges in one call.

This module is for tests and measurements without a daemon. In a daemon, the copy engine fetches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.arrays import pointer, struct_dtype
from monarch_py.native import ffi, lib
from monarch_py.peers.peer import Peer
from monarch_py.peers.status import PeerStatus

__all__ = ["FileId", "fetch_ranges", "new_gets"]

GET = struct_dtype("struct monarch_peer_get")


@dataclass(frozen=True, slots=True)
class FileId:
    """Identifies a file in requests between nodes, which never exchange paths. A file has the same
    FileId on every node.

    source : the index of the file's source in the configuration
    path_hash : the file's hash in the catalog; it is computed from the relative path and the source
    size, mtime_ns : the size [bytes] and the modification time [ns] of the file in the source
    """

    source: int
    path_hash: int
    size: int
    mtime_ns: int


def new_gets(files: Sequence[FileId]) -> npt.NDArray[Any]:
    """Returns one request for each file, (len(files),) of dtype GET. A request is for the complete
    file.

    The caller must set the destination: `memory` (an address), or `to` and `at` (the descriptor of
    a file, and the offset in this file at which the first byte is stored). To request only a range
    of a file, the caller also sets `first` and `length` [bytes]. A fetch sets `status`, `received`
    (the number of bytes with a correct checksum) and `error`.
    """
    gets = np.zeros(len(files), dtype=GET)
    gets["source"] = [file.source for file in files]
    gets["path_hash"] = np.array([file.path_hash for file in files], dtype=np.uint64)
    gets["size"] = gets["length"] = [file.size for file in files]
    gets["mtime_ns"] = [file.mtime_ns for file in files]
    gets["to"] = -1
    gets["status"] = PeerStatus.CUT
    return gets


def fetch_ranges(peer: Peer, gets: npt.NDArray[Any]) -> None:
    """Fetches ranges, and sets the field `status` of each request. Raises no exception if a range
    fails. The time limits of `peer` apply. Several threads may fetch from the same peer at the same
    time.

    gets : (n,) of dtype GET, the requests
    """
    assert gets.dtype == GET
    where = pointer(gets)
    lib.monarch_peer_ask(peer.c, where, len(gets), ffi.NULL, ffi.NULL, ffi.NULL)
