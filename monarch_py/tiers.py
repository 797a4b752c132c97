"""A tier on this node: its directory, who holds it, and what fits.

Layout below the mount point: monarch-<uid>/lock, monarch-<uid>/manifest.sqlite (persistent tiers)
and monarch-<uid>/c/<number of the copy, 13 hexadecimal digits>. The staging area of a session lies
in monarch-<uid>/staging-<key of the session>, so that it can be where a tier is, or another one.
"""

import logging
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py import memory
from monarch_py.config import TierConfig
from monarch_py.errors import MonarchError, SessionError, TierError
from monarch_py.native import lib
from monarch_py.placement import TierRoom
from monarch_py.session import hold, private_directory

__all__ = ["Tier", "copy_name", "copy_number", "slack_of", "tier_root"]

log = logging.getLogger("monarch.tiers")

# Of the quota, for the names and manifest rows of the files placed in one go [bytes].
SLACK_BYTES = 256 * 1024
# What a copy takes besides its blocks: its name in the directory, and its row in the manifest with
# a path. Longer paths show in the manifest's own size [bytes].
NAME_BYTES, ROW_BYTES = 64, 448
# Left free on the file system beside the quota, for the manifest and the directories [bytes].
MARGIN_BYTES = 1 << 20
# The kernel takes a millisecond to say how much memory is left, and some calls to say what the
# directory of copies takes. Neither is asked again within this time, but for memory when so much
# was filled: small files are placed in a thousand portions a second.
LOOK_S, LOOK_BYTES = 0.05, 64 << 20


def tier_root(mount_point: Path) -> Path:
    return mount_point / f"monarch-{os.geteuid()}"


def copy_name(number: int) -> str:
    return f"{number:0{lib.MONARCH_COPY_NAME}x}"


def copy_number(name: str) -> int | None:
    """The number that a file's name says; None when it is not the name of a copy."""
    if len(name) != lib.MONARCH_COPY_NAME:
        return None
    try:
        return int(name, 16)
    except ValueError:
        return None


LISTED = np.dtype([("number", "u8"), ("inode", "u8")])


def slack_of(quota_bytes: int) -> int:
    """What of a tier's quota no copy is placed in."""
    return min(SLACK_BYTES, quota_bytes // 64)


class Tier:
    """An open tier. TierError when it cannot be used or another daemon holds it.

    below : its directory in that of the user, "" for this itself
    `used_bytes` and `used_inodes` are what its copies take, those being written included.
    """

    def __init__(self, config: TierConfig, below: str = "") -> None:
        self.config = config
        self.usable = True
        self.used_bytes = self.used_inodes = 0
        self.reserved_bytes = 0  # of used_bytes: promised to fills that have not ended
        self.files = 0
        # Of copies that took more than their size rounded up, how much more, by their numbers.
        self._excess: dict[int, int] = {}
        self.cap_bytes: int | None = None  # set when the disk was full before the quota was
        # What memory left for copies at the last look, when to look again, filled since then (less
        # what went); what the directory took, and when to look again.
        self._memory_bytes, self._next_look_s, self._filled_bytes = 0, 0.0, 0
        self._overhead_bytes, self._next_overhead_s = 0, 0.0
        self.root = tier_root(config.mount_point) / below
        self.copies = self.root / "c"
        try:
            private_directory(tier_root(config.mount_point))
            private_directory(self.root)
            private_directory(self.copies)
        except MonarchError as error:
            raise TierError(f"tier {config.mount_point}: {error}") from error
        try:
            self._lock = self._hold()
            self.fd = os.open(self.copies, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:  # read-only, or full to the last byte
            raise TierError(f"tier {config.mount_point}: {error.strerror}") from error
        self.block_bytes = max(os.fstatvfs(self.fd).f_frsize, 512)
        if config.kind == "ram":
            self.block_bytes = max(self.block_bytes, self._least_taken())

    def _hold(self) -> int:
        try:
            return hold(self.root / "lock")
        except SessionError as error:
            raise TierError(
                f"tier {self.config.mount_point} is held by {error}; it goes unused here"
            ) from error

    def _least_taken(self) -> int:
        """What a file of one byte takes [bytes]: a large page on a tmpfs with `huge=always`, of
        which statfs(2) says nothing. 0 if it cannot be told."""
        try:
            fd = os.open(self.copies, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, b"1")
                return os.fstat(fd).st_blocks * 512
            finally:
                os.close(fd)
        except OSError:  # no such files here, or full
            return 0

    # --- content at start -------------------------------------------------------------------

    def listing(self) -> npt.NDArray[Any]:
        """The copies that lie here, as (copies,) of LISTED sorted by number. Files with other names
        are not ours."""
        with os.scandir(self.copies) as found:
            numbers = ((copy_number(entry.name), entry.inode()) for entry in found)
            # A generator: a million Python numbers at a time would stay with the process.
            listed = np.fromiter((row for row in numbers if row[0] is not None), dtype=LISTED)
        listed.sort(order="number")
        return listed

    def remove(self, number: int) -> None:
        try:
            os.unlink(copy_name(number), dir_fd=self.fd)
        except (FileNotFoundError, IsADirectoryError):
            pass
        except OSError as error:  # read-only, or broken: its room does not come back
            log.warning("tier %s goes unused: %s", self.root, error.strerror)
            self.usable = False

    def remove_all(self, listed: npt.NDArray[Any]) -> None:
        for number in listed["number"].tolist():
            self.remove(number)

    @staticmethod
    def first_number() -> int:
        """A copy number above all that any daemon gave before: microseconds since 1970, and
        nobody makes a million copies a second."""
        return time.time_ns() // 1000

    # --- room -------------------------------------------------------------------------------

    def overhead_bytes(self) -> int:
        """What the directory of copies and the manifest take."""
        total = 0
        for path in (self.root, *self.root.iterdir()):
            try:
                total += path.lstat().st_blocks * 512
            except OSError:
                continue  # SQLite's journal comes and goes
        return total

    @property
    def entry_bytes(self) -> int:
        """What each copy takes besides its blocks."""
        return NAME_BYTES + (ROW_BYTES if self.config.persistent else 0)

    def quota_for_copies(self) -> int:
        """What the directory of copies and the manifest leave of the quota; OSError when they
        cannot be looked at."""
        now_s = time.monotonic()
        if now_s >= self._next_overhead_s:
            self._overhead_bytes, self._next_overhead_s = self.overhead_bytes(), now_s + LOOK_S
        # Rows that are not written yet are foreseen.
        overhead = max(self._overhead_bytes, self.used_inodes * self.entry_bytes)
        return self.config.quota_bytes - overhead - slack_of(self.config.quota_bytes)

    def room(self) -> TierRoom:
        """What can be placed here now: the least of the quota, the file system and, for a RAM
        tier, what the memory cgroup leaves."""
        nothing = self.room_unit()
        if not self.usable:
            return nothing
        try:
            system = os.fstatvfs(self.fd)
            limits = [self.quota_for_copies() - self.used_bytes]
        except OSError:
            return nothing
        limits.append(system.f_bavail * system.f_frsize - self.reserved_bytes - MARGIN_BYTES)
        if self.cap_bytes is not None:
            limits.append(self.cap_bytes - self.used_bytes)
        if self.config.kind == "ram":
            limits.append(self._memory_left() - self.reserved_bytes)
        # Also an empty file takes room, for its name: a full disk must not be tried for ever.
        if min(limits) < self.block_bytes:
            return nothing
        inodes = system.f_favail if system.f_files else 1 << 40
        return TierRoom(min(limits), max(0, inodes - 16), self.block_bytes, self.entry_bytes)

    def _memory_left(self) -> int:
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._memory_bytes, self._filled_bytes = memory.available_bytes(), 0
            self._next_look_s = now_s + LOOK_S
        return self._memory_bytes - self._filled_bytes

    def rounded(self, size: int) -> int:
        return -(-size // self.block_bytes) * self.block_bytes

    def reserve(self, sizes: npt.NDArray[np.uint64]) -> None:
        """Promises room to fills of so many files; sizes : (fills,) [bytes]."""
        needed = int(self.rounded_all(sizes).sum())
        self.used_bytes += needed
        self.reserved_bytes += needed
        self.used_inodes += len(sizes)

    def settle(
        self,
        numbers: npt.NDArray[np.uint64],
        sizes: npt.NDArray[np.uint64],
        taken: npt.NDArray[np.uint64],
    ) -> None:
        """Fills of the copies with these numbers have ended well: what they took, (fills,) [bytes],
        is counted instead of what they reserved."""
        reserved = self.rounded_all(sizes)
        excess = np.maximum(taken.astype(np.int64) - reserved, 0)
        for i in np.flatnonzero(excess).tolist():
            self._excess[int(numbers[i])] = int(excess[i])
        more = int(excess.sum())
        self.reserved_bytes -= int(reserved.sum())
        self.used_bytes += more
        self.files += len(sizes)
        self._filled_bytes += int(reserved.sum()) + more
        if self._filled_bytes > LOOK_BYTES:
            self._next_look_s = 0

    def give_back(self, size: int) -> None:
        """A fill has failed, and took nothing."""
        self.reserved_bytes -= self.rounded(size)
        self.used_bytes -= self.rounded(size)
        self.used_inodes -= 1

    def adopt(self, sizes: npt.NDArray[np.uint64]) -> None:
        """Counts many copies that lie here; sizes : (copies,) [bytes]."""
        self.used_bytes += int(self.rounded_all(sizes).sum())
        self.used_inodes += len(sizes)
        self.files += len(sizes)

    def rounded_all(self, sizes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        return self.room_unit().rounded(sizes)

    def room_unit(self) -> TierRoom:
        """No room, but the block that sizes are rounded to."""
        return TierRoom(0, 0, self.block_bytes)

    def release(self, number: int, size: int) -> None:
        """The copy with this number is gone."""
        took = self.rounded(size) + self._excess.pop(number, 0)
        self.used_bytes = max(0, self.used_bytes - took)
        self.used_inodes -= 1
        self.files -= 1
        self._filled_bytes -= took

    def note_full(self) -> None:
        """The disk was full before the quota was: no more than what lies here now."""
        self.cap_bytes = max(0, self.used_bytes - self.reserved_bytes)

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._lock)

    def discard(self) -> None:
        """Removes everything of ours, the lock's file too; the tier is closed afterwards."""
        shutil.rmtree(self.copies, ignore_errors=True)
        with suppress(OSError):  # read-only by now, or gone
            for path in (*self.root.glob("manifest.sqlite*"), self.root / "lock"):
                path.unlink(missing_ok=True)
        self.close()
        with suppress(OSError):  # something in it is not ours
            self.root.rmdir()
            tier_root(self.config.mount_point).rmdir()
