"""Requests for ranges of files from a peer, in bulk, and their outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.native import lib, struct_dtype

__all__ = ["GET", "FileId", "PeerStatus", "new_gets"]

GET = struct_dtype("struct monarch_peer_get")


class PeerStatus(IntEnum):
    """The outcome of a request (csrc/peers/wire.h says what each means). A node's number is added
    to MOVED."""

    OK = lib.MONARCH_PEER_OK
    REFUSED = lib.MONARCH_PEER_REFUSED
    UNKNOWN_FILE = lib.MONARCH_PEER_UNKNOWN_FILE
    CHANGED = lib.MONARCH_PEER_CHANGED
    COMING = lib.MONARCH_PEER_COMING
    TIMEOUT = lib.MONARCH_PEER_TIMEOUT
    CUT = lib.MONARCH_PEER_CUT
    WRONG_BYTES = lib.MONARCH_PEER_WRONG_BYTES
    NO_ROOM = lib.MONARCH_PEER_NO_ROOM
    FORGED = lib.MONARCH_PEER_FORGED
    OTHER_NODE = lib.MONARCH_PEER_OTHER_NODE
    MOVED = lib.MONARCH_PEER_MOVED


@dataclass(frozen=True, slots=True)
class FileId:
    """A file's identity, the same in every node's catalog; nodes never exchange paths.

    source : its number in the configuration;  path_hash : the catalog's hash of the relative path
    and the source;  size [bytes];  mtime_ns : of the source's file
    """

    source: int
    path_hash: int
    size: int
    mtime_ns: int


def new_gets(files: Sequence[FileId]) -> npt.NDArray[Any]:
    """Requests (len(files),) of dtype GET for whole files, without a destination yet.

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
