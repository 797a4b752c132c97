"""Turns wanted extents of files into reads: neighbours are joined, and long reads are cut."""

from dataclasses import dataclass

import numpy as np

from monarch_py.native import Array, Int32s, Ints

# Longer reads are cut at multiples of this [bytes]. It is what Linux reads ahead by default, and
# what many mounted file systems ask their servers for at once.
PIECE = 128 << 10


@dataclass(frozen=True, eq=False)
class Extents:
    """Wanted parts of files, in any order; they may overlap.

    file : (extents,) int32, the files' numbers
    offset, length : (extents,) int64 [bytes]
    start : (extents,) int64, where each belongs in the caller's buffer [bytes]
    """

    file: Int32s
    offset: Ints
    length: Ints
    start: Ints

    def __len__(self) -> int:
        return len(self.file)

    def take(self, chosen: Array) -> "Extents":
        """The extents at these places, or where a mask is true."""
        return Extents(
            self.file[chosen], self.offset[chosen], self.length[chosen], self.start[chosen]
        )


@dataclass(frozen=True, eq=False)
class Joined:
    """The reads that bring some extents.

    reads : the reads; `start` says where in the caller's buffer, or in the scratch buffer
    in_scratch : (reads,) bool
    scratch : the bytes of the scratch buffer, which takes reads that bring more than one extent
        needs; `copied` are the extents that are copied from it, with `offset` within it
    """

    reads: Extents
    in_scratch: Array
    scratch: int
    copied: Extents


def join(extents: Extents, gap: int) -> Joined:
    """The reads that bring these extents.

    gap : a read goes on over at most this many unwanted bytes between two extents. Extents that
        touch are joined unless both are as long as a piece; those that overlap always are
    """
    if not len(extents):
        return Joined(extents, np.zeros(0, dtype=np.bool_), 0, extents)
    rising = extents.take(np.lexsort((extents.offset, extents.file)))
    first = _beginnings(rising, gap)
    end = np.append(first[1:], len(rising))
    low = rising.offset[first]
    length = np.maximum.reduceat(rising.offset + rising.length, first) - low
    # The read is what is wanted if the extents lie in the buffer as they lie in the file.
    run = np.repeat(np.arange(len(first)), end - first)
    shift = rising.start - rising.offset
    same = np.logical_and.reduceat(shift == shift[first][run], first)
    whole = np.add.reduceat(rising.length, first) == length
    in_scratch = ~(same & whole)
    room = np.where(in_scratch, length, 0)
    start = np.where(in_scratch, np.cumsum(room) - room, rising.start[first])
    of_scratch = in_scratch[run]
    within = (start - low)[run] + rising.offset
    copied = Extents(rising.file, within, rising.length, rising.start).take(of_scratch)
    reads = Extents(rising.file[first], low, length, start)
    return Joined(reads, in_scratch, int(room.sum()), copied)


def _beginnings(rising: Extents, gap: int) -> Ints:
    """The places at which reads begin, among extents in the order of files and offsets."""
    reach = rising.offset + rising.length
    if np.any(reach[:-1] > reach[1:]):  # an extent may lie within an earlier one
        for file in np.unique(rising.file):
            of = rising.file == file
            reach[of] = np.maximum.accumulate(reach[of])
    between = rising.offset[1:] - reach[:-1]
    apart = (between > gap) | (np.diff(rising.file) != 0)
    # A read of two long extents would be cut again.
    apart |= (between >= 0) & (np.minimum(rising.length[:-1], rising.length[1:]) >= PIECE)
    return np.concatenate([[0], np.flatnonzero(apart) + 1])


def pieces(reads: Extents, piece: int = PIECE) -> Extents:
    """The reads; those longer than `piece` are cut at each multiple of it in their files."""
    long = reads.length > piece
    if not long.any():
        return reads
    last = (reads.offset + reads.length - 1) // piece
    number = np.where(long, last - reads.offset // piece + 1, 1)
    of = np.repeat(np.arange(len(reads)), number)
    nth = np.arange(len(of)) - (np.cumsum(number) - number)[of]
    begin, end = reads.offset[of], (reads.offset + reads.length)[of]
    low = np.maximum(begin, (begin // piece + nth) * piece)
    high = np.where(long[of], np.minimum(end, (begin // piece + nth + 1) * piece), end)
    return Extents(reads.file[of], low, high - low, reads.start[of] + low - begin)
