"""Turns wanted extents of files into reads: joins neighbouring extents, and cuts long reads."""

from dataclasses import dataclass

import numpy as np

from monarch_py.arrays import Array, Int32s, Ints

# A read that is longer than this size [bytes] is cut at multiples of this size in the file. Linux
# reads ahead by this size by default, and many network file systems request as much at a time.
PIECE = 128 << 10


@dataclass(frozen=True, eq=False)
class Extents:
    """Parts of files that are to be read, in any order. The parts may overlap.

    file : (extents,) int32, the files' numbers
    offset, length : (extents,) int64, where each part begins in its file, and its length [bytes]
    start : (extents,) int64, where each part goes in the caller's buffer [bytes]
    """

    file: Int32s
    offset: Ints
    length: Ints
    start: Ints

    def __len__(self) -> int:
        return len(self.file)

    def take(self, chosen: Array) -> "Extents":
        """Returns the chosen extents.

        chosen : the indices of the extents, or a mask
        """
        return Extents(
            self.file[chosen], self.offset[chosen], self.length[chosen], self.start[chosen]
        )


@dataclass(frozen=True, eq=False)
class Joined:
    """The reads that together cover a set of extents.

    If the extents of a read follow each other without gaps, both in the file and in the caller's
    buffer, the read goes straight into that buffer. Otherwise the read goes into a scratch buffer,
    and its extents are copied from there.

    reads : the reads; `start` is a place in the caller's buffer or in the scratch buffer
    in_scratch : (reads,) bool, whether the read goes into the scratch buffer
    scratch : the size of the scratch buffer [bytes]
    copied : the extents to copy from the scratch buffer; `offset` is a place in that buffer
    """

    reads: Extents
    in_scratch: Array
    scratch: int
    copied: Extents


def join(extents: Extents, gap: int) -> Joined:
    """Returns the reads that together cover the extents.

    gap : two extents are joined into one read if at most this many unwanted bytes lie between them.
        Extents that overlap are always joined. Two extents of PIECE bytes or more each are joined
        only if they overlap
    """
    if not len(extents):
        return Joined(extents, np.zeros(0, dtype=np.bool_), 0, extents)
    rising = extents.take(np.lexsort((extents.offset, extents.file)))
    first = _beginnings(rising, gap)
    if len(first) == len(rising):  # nothing is joined; this is usual under a full shuffle
        return Joined(rising, np.zeros(len(first), dtype=np.bool_), 0, rising.take(first[:0]))
    end = np.append(first[1:], len(rising))
    low = rising.offset[first]
    length = np.maximum.reduceat(rising.offset + rising.length, first) - low
    # A read can go straight into the caller's buffer if its extents follow each other without gaps,
    # both in the file and in that buffer.
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
    """Returns the extents at which a new read begins, as indices in `rising`.

    rising : the extents, sorted by file and offset
    """
    reach = rising.offset + rising.length
    if (reach[:-1] > reach[1:]).any():  # an extent may lie within an earlier one
        for file in np.unique(rising.file):
            of = rising.file == file
            reach[of] = np.maximum.accumulate(reach[of])
    between = rising.offset[1:] - reach[:-1]
    apart = (between > gap) | (np.diff(rising.file) != 0)
    # Do not join two long extents, because `pieces` would cut the read again.
    apart |= (between >= 0) & (np.minimum(rising.length[:-1], rising.length[1:]) >= PIECE)
    return np.concatenate([[0], np.flatnonzero(apart) + 1])


def pieces(reads: Extents, piece: int = PIECE) -> Extents:
    """Returns the reads, with long ones divided into pieces. A read that is longer than `piece` is
    cut at the offsets in its file that are multiples of `piece`."""
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
