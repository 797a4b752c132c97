"""Fetches ranges of files from a peer, many ranges in one call. This module is for tests and
measurements that run no daemon; in a daemon, the engine fetches."""

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
    """A file's identity, the same in every node's catalog; nodes never exchange paths.

    source : the number of the file's source in the configuration
    path_hash : the catalog's hash of the relative path and the source
    size, mtime_ns : size [bytes] and time of modification [ns] of the source's file
    """

    source: int
    path_hash: int
    size: int
    mtime_ns: int


def new_gets(files: Sequence[FileId]) -> npt.NDArray[Any]:
    """Returns requests (len(files),) of dtype GET for whole files, without a destination yet.

    The caller sets the destination: `memory` (an address), or `to` and `at` (a descriptor and the
    offset of the first byte there). The caller may narrow `first` and `length` [bytes]. A fetch
    sets `status`, `received` (bytes whose checksum was right) and `error`.
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
    """Fetches the ranges and sets the status of each. The peer's time limits apply. A range that
    fails raises no exception. Any number of threads may fetch from one peer.

    gets : (n,) of dtype GET, the ranges
    """
    assert gets.dtype == GET
    where = pointer(gets)
    lib.monarch_peer_ask(peer.c, where, len(gets), ffi.NULL, ffi.NULL, ffi.NULL)
