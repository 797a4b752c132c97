"""A tier on this node: its directory, its lock, and its room.

Below its mount point, a tier has these files: monarch-<uid>/lock, monarch-<uid>/manifest.sqlite
(only in persistent tiers), and monarch-<uid>/c/<number of the copy, 13 hexadecimal digits>. A
session's staging area is in monarch-<uid>/staging-<key of the session>. So it can share a mount
point with a tier, or with another session's staging area.
"""

import errno
import logging
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from monarch_py.arrays import Array, Ints, Uints
from monarch_py.config.schema import TierConfig
from monarch_py.errors import MonarchError, TierError
from monarch_py.ipc.session import HeldError, hold, holder_of, private_directory
from monarch_py.native import lib
from monarch_py.policies.placement import TierRoom, slack_of
from monarch_py.storage.apart import make_apart
from monarch_py.storage.memory import MemoryRoom
from monarch_py.storage.shortage import MARGIN_BYTES, shortage
from monarch_py.util.ownership import Doubt, doubts

log = logging.getLogger("monarch.tiers")

# The room [bytes] that a copy takes in addition to its blocks. NAME_BYTES: for its name in the
# directory. ROW_BYTES: for its row in the manifest, if paths have typical lengths. With longer
# paths, the measured size of the manifest counts instead (`quota_for_copies`).
NAME_BYTES, ROW_BYTES = 64, 448
# The room [bytes] that is kept free for the catalog's growth, if the catalog is on the tier's file
# system. It is sufficient for three million files. At most half of the file system is kept free.
CATALOG_BYTES = 1 << 30
# How long [s] the measured room of the tier's directories is reused. The daemon places small files
# in up to a thousand portions a second, and needs this room each time. Measuring it takes several
# system calls.
LOOK_S = 0.25
# These errors do not mean that a tier is broken: the process or the node just has no free
# descriptor at the moment.
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


def tier_root(mount_point: Path) -> Path:
    return mount_point / f"monarch-{os.geteuid()}"


def copy_name(number: int) -> str:
    return f"{number:0{lib.MONARCH_COPY_NAME}x}"


def copy_number(name: str) -> int | None:
    """Returns the number in a copy's file name; None if the name is not the name of a copy."""
    if len(name) != lib.MONARCH_COPY_NAME:
        return None
    try:
        return int(name, 16)
    except ValueError:
        return None


LISTED = np.dtype([("number", "u8"), ("inode", "u8"), ("size", "u8"), ("is_sound", "?")])
# The mode of a copy: a regular file that only its owner may read, and that nobody may write.
COPY_MODE = stat.S_IFREG | 0o400


def remove_any(path: Path) -> None:
    """Removes the file, link or directory (with its content) at this path. Raises OSError if it
    cannot be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def why_gone(mount_point: Path) -> str:
    return (
        f"tier {mount_point} goes unused: its directory was removed or replaced;"
        " run `monarch stop` and `monarch start` to make it again"
    )


def why_refused(mount_point: Path, doubt: Doubt) -> str:
    return f"tier {mount_point} goes unused: {doubt.text}; {doubt.hint}"


def refuse_replaceable(mount_point: Path) -> None:
    """Checks whether another user could replace the directory of copies below a mount point. Raises
    TierError if this is certainly possible. Logs a warning if this process cannot find out."""
    try:
        found = doubts(mount_point)
    except OSError as error:
        raise TierError(f"tier {mount_point}: {error.filename}: {error.strerror}") from error
    for doubt in found:
        if doubt.is_certain:
            raise TierError(why_refused(mount_point, doubt))
        log.warning("tier %s: %s; %s", mount_point, doubt.text, doubt.hint)


def why_held(mount_point: Path, holder: HeldError, config: Path | None) -> str:
    """Returns the message for a tier that another daemon holds.

    config : configuration of the daemon that needs the tier; None for a command that works without
        a daemon
    """
    whose = f"the daemon of {holder.config} ({holder})" if holder.config else str(holder)
    held = f"tier {mount_point} is held by {whose}"
    if config is None:
        return f"{held}; stop it first" + (
            f", with monarch stop -c {holder.config}" if holder.config else ""
        )
    if holder.config == str(config):
        return (
            f"tier {mount_point} is held by another daemon of this configuration ({holder}), and"
            " goes unused here: to use that daemon, set MONARCH_SHM to the value with which that"
            " daemon was started; otherwise end that daemon"
        )
    return (
        f"{held}; it goes unused here: give {config.name} a directory of its own, for example"
        f" mount_point: {mount_point / config.stem}"
    )


def held_elsewhere(mount_point: Path, config: Path) -> str:
    """Returns the message of `why_held` if a daemon holds the tier now; "" if no daemon holds
    it."""
    holder = holder_of(tier_root(mount_point) / "lock")
    return "" if holder is None else why_held(mount_point, holder, config)


class Tier:
    """An open tier. The constructor raises TierError if the tier cannot be used, or if another
    daemon holds it.

    below : the tier's subdirectory of the user's directory (monarch-<uid>); "" if the tier is the
        user's directory itself
    config_file : configuration of the daemon that opens the tier; None for a command
    usable : whether new copies may be placed here
    used_bytes, used_inodes : the room that the copies occupy, including copies that are being
        written
    lost : a sentence about copies of earlier sessions that can no longer be used; "" if there are
        none
    unrecorded : a sentence about copies that an error has kept out of the manifest; "" if there are
        none
    gone : why the directory of copies can no longer be trusted; "" as long as it can
    """

    def __init__(
        self,
        config: TierConfig,
        below: str = "",
        config_file: Path | None = None,
        memory_room: MemoryRoom | None = None,
    ) -> None:
        self.config = config
        self.usable, self.lost, self.unrecorded, self.gone = True, "", "", ""
        self.used_bytes = self.used_inodes = 0
        self.reserved_bytes = 0  # the part of used_bytes that is reserved for unfinished fills
        self.files = 0
        # Some copies occupy more room than their size, rounded up to complete blocks. This maps the
        # number of such a copy to the excess [bytes].
        self._excess: dict[int, int] = {}
        # The limit on the room that copies may use [bytes]. It is set only if the disk became full
        # before the quota was used up.
        self.cap_bytes: int | None = None
        # Copies in an SSD tier take no memory. So an SSD tier has a MemoryRoom of its own, and does
        # not reduce the memory that the RAM tiers share.
        self._memory = memory_room if config.kind == "ram" and memory_room else MemoryRoom()
        # The latest result of `overhead_bytes`, and the time [s] at which it must be computed
        # again.
        self._overhead_bytes, self._next_overhead_s = 0, 0.0
        self.root = tier_root(config.mount_point) / below
        self.copies = self.root / "c"
        with self._errors_named():
            for path in (tier_root(config.mount_point), self.root):
                private_directory(path, "choose another mount_point")
            self._lock = self._hold(config_file)
            try:
                # If make_apart fails, private_directory below creates the directory, or raises an
                # error.
                with suppress(OSError):
                    make_apart(self.copies)
                private_directory(self.copies, "choose another mount_point")
                self.block_bytes = max(os.statvfs(self.copies).f_frsize, 512)
                self.fd = os.open(self.copies, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except BaseException:
                os.close(self._lock)
                raise
        if config.kind == "ram":
            self.block_bytes = max(self.block_bytes, self._least_taken())

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        """Inside a `with` statement, turns MonarchErrors and OSErrors into TierErrors that name the
        tier. The file system may be read-only, for example, or completely full."""
        try:
            yield
        except TierError:
            raise
        except (MonarchError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise TierError(f"tier {self.config.mount_point}: {why}") from error

    def _hold(self, config_file: Path | None) -> int:
        try:
            return hold(self.root / "lock", config_file)
        except HeldError as error:
            raise TierError(why_held(self.config.mount_point, error, config_file)) from error

    def _least_taken(self) -> int:
        """Returns how many bytes a file of one byte occupies; 0 if unknown. On a tmpfs with
        `huge=always`, such a file takes a huge page, but statfs(2) reports small blocks."""
        try:
            fd = os.open(self.copies, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, b"1")
                return os.fstat(fd).st_blocks * 512
            finally:
                os.close(fd)
        except OSError:  # the file system lacks O_TMPFILE, or is full
            return 0

    # --- content at start -------------------------------------------------------------------

    def listing(self) -> Array:
        """Lists the files in the directory whose names have the form of a copy's name; Monarch did
        not make the others. Returns an array of dtype LISTED, sorted by number.

        The field `is_sound` tells whether Monarch can have made the file: a regular file of this
        user, with the mode of a copy and without a second hard link. Do not open any other file: a
        FIFO would block its reader, and a symbolic link leads elsewhere.
        """
        # Use a generator. If a list of a million tuples were freed, Python would not return its
        # memory to the kernel.
        listed = np.fromiter(self._looks(), dtype=LISTED)
        listed.sort(order="number")
        return listed

    def last_number(self) -> int:
        """Returns the largest number of a copy in the directory; 0 if the directory contains no
        copy."""
        with os.scandir(self.fd) as found:
            return max((copy_number(entry.name) or 0 for entry in found), default=0)

    def _looks(self) -> Iterator[tuple[int, int, int, bool]]:
        owner = os.geteuid()
        with os.scandir(self.fd) as found:
            for entry in found:
                number = copy_number(entry.name)
                if number is None:
                    continue
                try:
                    st = entry.stat(follow_symlinks=False)
                except OSError:  # the file is gone, or its inode is damaged
                    yield number, entry.inode(), 0, False
                    continue
                is_sound = st.st_mode == COPY_MODE and st.st_uid == owner and st.st_nlink == 1
                yield number, st.st_ino, st.st_size, is_sound

    def remove(self, number: int) -> None:
        name = copy_name(number)
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            pass
        # Monarch never gives a directory the name of a copy, so another program has made this
        # directory. It is removed only if it is empty.
        except IsADirectoryError:
            with suppress(OSError):
                os.rmdir(name, dir_fd=self.fd)
        except OSError as error:  # the tier is read-only or broken, so the copy's room stays used
            self.fail(error.errno or errno.EIO)

    def remove_all(self, numbers: Array) -> None:
        for number in numbers.tolist():
            self.remove(number)

    @staticmethod
    def first_number() -> int:
        """Returns the smallest number that a daemon may give to its first copy: the microseconds
        since 1970. Daemons make fewer than a million copies a second. So copies of earlier daemons
        have smaller numbers, unless the clock was set back. In that case, `Filler.first_copy` uses
        a larger number."""
        return time.time_ns() // 1000

    # --- room -------------------------------------------------------------------------------

    def overhead_bytes(self) -> int:
        """Returns the room that the tier's directories and the manifest take [bytes]."""
        total = 0
        for path in (self.root, *self.root.iterdir()):
            try:
                total += path.lstat().st_blocks * 512
            except OSError:
                continue  # SQLite creates and removes its journal at any time
        return total

    @property
    def entry_bytes(self) -> int:
        """The room [bytes] that each copy takes in addition to its blocks."""
        return NAME_BYTES + (ROW_BYTES if self.config.persistent else 0)

    def quota_for_copies(self) -> int:
        """Returns the part of the quota that copies may use [bytes]: the quota, minus the room of
        the tier's directories and manifest, minus the slack (`slack_of`). Raises OSError if the
        tier's directory cannot be examined."""
        now_s = time.monotonic()
        if now_s >= self._next_overhead_s:
            try:
                self._overhead_bytes = self.overhead_bytes()
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR:
                    raise
            self._next_overhead_s = now_s + LOOK_S
        # While the manifest lacks the rows of recent copies, `_overhead_bytes` is too small. So an
        # estimate from the number of copies is used instead, if that is larger.
        overhead = max(self._overhead_bytes, self.used_inodes * self.entry_bytes)
        return self.config.quota_bytes - overhead - slack_of(self.config.quota_bytes)

    def room(self, *, is_shared: bool = False) -> TierRoom:
        """Returns the room for new copies now: the smallest of the room in the quota, the room on
        the file system and, for a RAM tier, the free memory.

        is_shared : whether the catalog is on the tier's file system, so that room must be kept for
            the catalog's growth
        """
        nothing = TierRoom(0, 0, self.block_bytes)
        if not self.usable:
            return nothing
        try:
            system = os.fstatvfs(self.fd)
            limits = [self.quota_for_copies() - self.used_bytes]
        except OSError:
            return nothing
        free = system.f_bavail * system.f_frsize
        if is_shared:
            free -= min(system.f_blocks * system.f_frsize // 2, CATALOG_BYTES)
        limits.append(free - self.reserved_bytes - MARGIN_BYTES)
        if self.cap_bytes is not None:
            limits.append(self.cap_bytes - self.used_bytes)
        if self.config.kind == "ram":
            limits.append(self._memory.left_bytes())
        # If less than a block is free, report no room at all, not even for empty files, whose names
        # also occupy room. Otherwise, fills would be tried again and again on a full disk.
        if min(limits) < self.block_bytes:
            return nothing
        inodes = system.f_favail if system.f_files else 1 << 40
        return TierRoom(min(limits), max(0, inodes - 16), self.block_bytes, self.entry_bytes)

    def shortage(self) -> str:
        """Returns a sentence about the tier's file system if the file system has less room than the
        quota. Returns "" if it has enough room, or if the tier is not used."""
        config, used = self.config, self.used_bytes - self.reserved_bytes
        if not self.usable:
            return ""
        return shortage(config.mount_point, config.quota_bytes, used, self.fd)

    def rounded(self, size: int) -> int:
        return -(-size // self.block_bytes) * self.block_bytes

    def reserve(self, sizes: Uints) -> None:
        """Reserves room for fills.

        sizes : (fills,) the size of each copy [bytes]
        """
        needed = int(self.rounded_all(sizes).sum())
        self.used_bytes += needed
        self._promise(needed)
        self.used_inodes += len(sizes)

    def settle(self, numbers: Uints, sizes: Uints, taken: Uints) -> None:
        """Turns reserved room into used room, for fills that have succeeded.

        numbers : array (fills,): for each fill, the number of its copy
        sizes, taken : arrays (fills,): for each fill, its copy's size, and the room that the copy
            occupies on the tier [bytes]
        """
        reserved = self.rounded_all(sizes)
        total = int(reserved.sum())
        excess = np.maximum(taken.astype(np.int64) - reserved, 0)
        for i in np.flatnonzero(excess).tolist():
            self._excess[int(numbers[i])] = int(excess[i])
        more = int(excess.sum())
        self._promise(-total)
        self.used_bytes += more
        self.files += len(sizes)
        self._memory.fill(total + more)

    def give_back(self, size: int) -> None:
        """Frees the room that was reserved for a fill. Call this if the fill has failed and has
        left no file on the tier."""
        self._promise(-self.rounded(size))
        self.used_bytes -= self.rounded(size)
        self.used_inodes -= 1

    def _promise(self, size_bytes: int) -> None:
        """Reserves room for unfinished fills; a negative size cancels reservations."""
        self.reserved_bytes += size_bytes
        self._memory.reserve(size_bytes)

    def adopt(self, sizes: Uints) -> None:
        """Counts copies that earlier sessions have left in the tier.

        sizes : (copies,) the size of each copy [bytes]
        """
        self.used_bytes += int(self.rounded_all(sizes).sum())
        self.used_inodes += len(sizes)
        self.files += len(sizes)

    def rounded_all(self, sizes: Uints) -> Ints:
        return TierRoom(0, 0, self.block_bytes).rounded(sizes)

    def release(self, number: int, size: int) -> None:
        """Counts the room of a removed copy as free.

        number, size : the copy's number, and its size [bytes]
        """
        took = self.rounded(size) + self._excess.pop(number, 0)
        self.used_bytes = max(0, self.used_bytes - took)
        self.used_inodes -= 1
        self.files -= 1
        self._memory.fill(-took)

    def note_full(self) -> None:
        """Limits the tier to the room that its existing copies occupy. Call this if the disk has
        become full before the quota was used up."""
        self.cap_bytes = max(0, self.used_bytes - self.reserved_bytes)

    def is_on(self, device: int) -> bool:
        return os.fstat(self.fd).st_dev == device

    def is_in_place(self) -> bool:
        """Returns whether the tier's path still leads to the directory that this object has open.
        On an error of the file system, returns True: clients get an error too, so they cannot open
        wrong files."""
        try:
            named = self.copies.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        held = os.fstat(self.fd)
        return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)

    def note_lost(self, what: str) -> None:
        """Records that copies of earlier sessions cannot be used.

        what : a text that says which copies, and why they cannot be used
        """
        self.lost = f"tier {self.config.mount_point}: {what}"
        log.warning("%s", self.lost)

    def note_unrecorded(self, why: str) -> None:
        """Records that copies could not be written to the manifest.

        why : the error
        """
        self.unrecorded = (
            f"tier {self.config.mount_point}: copies cannot be recorded ({why}), so the next daemon"
            " has to make them again; remove the cause, then run `monarch stop` and `monarch start`"
        )
        log.warning("%s", self.unrecorded)

    def fail(self, error: int) -> None:
        """Stops placing copies in this tier after an error of the file system. Existing copies are
        served as long as they can be read.

        error : the errno
        """
        if self.usable:
            log.warning("%s", self.broken(OSError(error, os.strerror(error))))
        self.usable = False

    def give_up(self, why: str) -> None:
        """Stops placing copies in this tier, and stops using the tier's path.

        why : the reason, a sentence for users
        """
        self.usable, self.gone = False, why

    def broken(self, error: OSError) -> TierError:
        """Returns the exception for a tier whose file system has returned `error`."""
        where = error.filename if isinstance(error.filename, str) else self.copies
        return TierError(
            f"tier {self.config.mount_point} goes unused: {where}: {error.strerror};"
            " repair its file system, then run `monarch stop` and `monarch start`"
        )

    def close(self, *, is_used: bool = False) -> None:
        """Closes the tier and releases its lock, so that another daemon can use the tier.

        is_used : whether some threads could not be ended, and may still use the directory's
            descriptor. The descriptor then stays open until the process ends
        """
        for fd in (self._lock,) if is_used else (self.fd, self._lock):
            # close() may return an error if the file system is broken, but releases the descriptor
            # nevertheless.
            with suppress(OSError):
                os.close(fd)

    def discard(self, *, is_used: bool = False) -> None:
        """Removes all of Monarch's files, including the lock file, and closes the tier. If the
        tier's path now leads to another directory, removes only the copies, through the descriptor
        of the tier's own directory."""
        if self.gone or not self.is_in_place():
            with suppress(OSError):
                self.remove_all(self.listing()["number"])
            self.close(is_used=is_used)
            return
        shutil.rmtree(self.copies, ignore_errors=True)
        with suppress(OSError):  # the file system may be read-only by now, or gone
            for path in self.root.glob("manifest.sqlite*"):
                remove_any(path)
            (self.root / "lock").unlink(missing_ok=True)
        self.close(is_used=is_used)
        with suppress(OSError):  # the directory may contain files that Monarch has not made
            self.root.rmdir()
            tier_root(self.config.mount_point).rmdir()
