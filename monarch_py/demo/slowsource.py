"""Mounts a directory as a slow file system that counts operations.

The program `slowsource` (benchmarks/slowsource.c) serves the file system. Usage::

    with SlowSource(backing, mountpoint, binary=binary) as source:
        source.rate(60e6)                           # [bytes/s] over all readers
        source.latency(open=0.002, getattr=0.001)   # [s] per operation
        ...
        print(source.counts()["read"])

Users other than root need fusermount3.
"""

import errno
import mmap
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

from monarch_py.errors import MonarchError
from monarch_py.util.processes import end

# Two words of the control file, which this module and the program `slowsource` share: the text
# "SLOWSRC1" as a little-endian number, and the version of the file's layout.
CONTROL_MAGIC = 0x31435253574F4C53
CONTROL_VERSION = 1

# Time limits [s]. A mount takes 10 ms, and more on a busy machine. A mount that takes longer than
# the limit is broken.
MOUNT_LIMIT_S = 10.0
UNMOUNT_LIMIT_S = 5.0
# The pause [s] between two checks of whether the mount is up.
POLL_S = 0.002


class SlowSourceError(MonarchError):
    """The slow source cannot be built, mounted or unmounted. The message says why, with a hint."""


def find_slowsource() -> Path | None:
    """Returns the path of the program `slowsource`, which the build puts into the package; None if
    the program is not there."""
    binary = Path(__file__).resolve().parents[1] / "slowsource"
    return binary if os.access(binary, os.X_OK) and binary.is_file() else None


def why_unavailable(binary: Path | None = None) -> str | None:
    """Says in one sentence why FUSE cannot be used here, with a hint; None if FUSE can be used.

    Tries to mount a slow source, because many containers have /dev/fuse but are not allowed to use
    it.

    binary : the program; by default the result of `find_slowsource`
    """
    binary = binary or find_slowsource()
    if binary is None:
        return (
            "the slow source was not built; install libfuse3's development files"
            " (libfuse3-dev or fuse3-devel) and build the package again"
        )
    if not Path("/dev/fuse").exists():
        return "/dev/fuse is missing; load the kernel module fuse, or give the container the device"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is closed to this user; ask the administrator to give it mode 0666"
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return "fusermount3 is missing; install the package fuse3"
    with tempfile.TemporaryDirectory(prefix="monarch-fuse-") as directory:
        backing, mountpoint = Path(directory, "backing"), Path(directory, "mountpoint")
        backing.mkdir()
        mountpoint.mkdir()
        try:
            with SlowSource(backing, mountpoint, binary=binary):
                return None
        except SlowSourceError as error:
            return f"{error}; in a container, allow FUSE mounts (CAP_SYS_ADMIN and /dev/fuse)"


class SlowSource:
    """Mounts `backing` at `mountpoint` for the duration of a `with` block. Operations are counted,
    and can be delayed or made to fail. Initially, no operation is delayed or fails.

    options : the mount's options, as benchmarks/slowsource.c defines them:
        keep_pages : the kernel keeps a file's cached pages across opens
        direct : the kernel caches no pages at all
        attr_timeout : how long the kernel caches names and attributes [s]
        link : a file, created if it is missing. Slow sources with the same file share one network
            link, like clients of one server. Set the rate of each of them
        flush : each close of a file descriptor waits for the source, and is counted as an fsync

    process : the process that serves the mount; None outside the `with` block

    If mounting or unmounting fails, SlowSourceError is raised. The end of the block detaches the
    mount and ends the program, even after an error or while files are open. If this process is
    killed, the program unmounts and ends too.
    """

    def __init__(
        self, backing: Path, mountpoint: Path, *, binary: Path, **options: bool | float | Path
    ) -> None:
        # The paths are resolved, because the kernel's table of mounts names a mount point by its
        # absolute path without symbolic links.
        self.backing = Path(os.path.realpath(backing))
        self.mountpoint = Path(os.path.realpath(mountpoint))
        self._binary = Path(os.path.realpath(binary))
        options = {"attr_timeout": 1.0, "allow_other": _may_allow_others(), **options}
        given = [k if v is True else f"{k}={v}" for k, v in options.items() if v is not False]
        self._options = ",".join(["until_eof", *given])
        self._control: _Control | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def rate(self, bytes_per_s: float) -> None:
        """Limits all readers and writers together to this many bytes per second. 0 means no
        limit."""
        if bytes_per_s < 0:
            raise ValueError(f"rate {bytes_per_s} is negative")
        # A rate below 1 byte/s must not be rounded to 0, which means no limit.
        self._mapped()["rate"] = max(1, round(bytes_per_s)) if bytes_per_s else 0

    def latency(self, **seconds_per_kind: float) -> None:
        """Sets how long operations of the given kinds are delayed: latency(open=0.002) delays each
        `open` by 2 ms. The delays of other kinds stay unchanged."""
        control = self._mapped()
        for kind, seconds in seconds_per_kind.items():
            if kind not in control.kinds:
                raise ValueError(f"unknown kind {kind!r}; use one of {', '.join(control.kinds)}")
            if seconds < 0:
                raise ValueError(f"latency {kind}={seconds} is negative")
            control[f"latency.{kind}"] = round(seconds * 1e9)

    def fail(self, errno_value: int) -> None:
        """Makes every operation fail with this error, such as ``errno.EIO``; 0 means no error."""
        if errno_value != 0 and errno_value not in errno.errorcode:
            raise ValueError(f"{errno_value} is not an error number")
        self._mapped()["fail"] = errno_value

    def counts(self) -> dict[str, int]:
        """Returns the counts since the start or the last `reset`: the number of operations by kind,
        and ``bytes_read`` and ``bytes_written`` [bytes].

        Requests that the kernel answers from its own caches are not counted. FUSE_FORGET messages,
        by which the kernel says that it has dropped an inode, are not counted either.
        """
        control = self._mapped()
        counts = {kind: control[f"count.{kind}"] for kind in control.kinds}
        return counts | {f"bytes_{way}": control[f"bytes.{way}"] for way in ("read", "written")}

    def reset(self) -> None:
        """Sets all counters to 0. Rate, latencies and the error are left unchanged."""
        control = self._mapped()
        for name in control.offsets:
            if name.startswith(("count.", "bytes.")):
                control[name] = 0

    def _mapped(self) -> "_Control":
        if self._control is None:
            raise SlowSourceError(
                f"{self.mountpoint} is not mounted; use SlowSource in a `with` statement"
            )
        return self._control

    def __enter__(self) -> "SlowSource":
        if self.process is not None:
            raise SlowSourceError(f"{self.mountpoint} is mounted already")
        for directory in (self.backing, self.mountpoint):
            if not directory.is_dir():
                raise SlowSourceError(f"{directory} is not a directory; create it first")
        with tempfile.TemporaryDirectory(prefix="monarch-slowsource-") as scratch:
            # The names of these two files are needed only until the program has opened them. The
            # `with` block removes the files with their directory.
            control, log = Path(scratch, "control"), Path(scratch, "log")
            with log.open("w+b") as output:
                try:
                    self._start(control, output)
                    self._wait_until_up(control, output)
                except BaseException:
                    self._end()
                    raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end()
        if kind is None and _is_mounted(self.mountpoint):
            raise SlowSourceError(
                f"{self.mountpoint} is still mounted; run fusermount3 -uz {self.mountpoint}"
            )

    def _start(self, control: Path, output: IO[bytes]) -> None:
        paths = [str(path) for path in (self._binary, self.backing, control, self.mountpoint)]
        try:
            self.process = subprocess.Popen(
                [*paths, "-o", self._options],
                # When this process ends for any reason, the program reads end-of-file from this
                # pipe, and ends too.
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"},
                # The program runs in a session of its own, so that Ctrl-C sends it no signal. The
                # mount must last until this process has cleaned up.
                start_new_session=True,
            )
        except OSError as error:
            raise SlowSourceError(f"{self._binary} cannot be started: {error.strerror}") from error

    def _wait_until_up(self, control: Path, output: IO[bytes]) -> None:
        assert self.process is not None
        offsets = _layout(self._binary)
        deadline = time.monotonic() + MOUNT_LIMIT_S
        while self._control is None or not self._control["ready"]:
            if self._control is None and _is_written(control, offsets):
                self._control = _Control(control, offsets)
            if self.process.poll() is not None:
                output.seek(0)
                said = " ".join(output.read().decode(errors="replace").split())
                said = said or f"{self._binary} ended without a message"
                raise SlowSourceError(f"{self.mountpoint} cannot be mounted: {said}")
            if time.monotonic() > deadline:
                raise SlowSourceError(f"{self.mountpoint} was not up in {MOUNT_LIMIT_S:.0f} s")
            time.sleep(POLL_S)
        try:
            # Even after the program has set `ready`, libfuse may reject the kernel's protocol
            # version.
            os.statvfs(self.mountpoint)
        except OSError as error:
            raise SlowSourceError(f"{self.mountpoint} does not answer: {error.strerror}") from error
        self.reset()

    def _end(self) -> None:
        process, self.process = self.process, None
        # Do not unmount if this object's mount was never established: the mount point may have an
        # older mount.
        up = self._control is not None and self._control["ready"] != 0
        if self._control is not None:
            # End the delays and errors of the slow source. Otherwise unmounting would be slow, or
            # would fail.
            for name in self._control.offsets:
                if name in ("rate", "fail") or name.startswith("latency."):
                    self._control[name] = 0
            self._control.close()
            self._control = None
        if process is None:
            return
        try:
            if up:
                _unmount(self.mountpoint)
            end(process, UNMOUNT_LIMIT_S)  # ends the program even if a file is still open
        finally:
            assert process.stdin is not None
            process.stdin.close()


class _Control:
    """The control file, mapped into memory: this process writes the rate and the latencies, and
    reads the counts. `control[name]` is the 8-byte word with this name.

    offsets : name of a word -> the word's offset [bytes], as `_layout` returns them
    """

    def __init__(self, path: Path, offsets: dict[str, int]) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        # This view writes all 8 bytes of a word at once. struct.pack_into(..., "<Q") would write
        # byte by byte, and the program `slowsource` could then read half a number.
        self._words = memoryview(self._map).cast("Q")
        self.offsets = offsets
        self.kinds = tuple(n.partition(".")[2] for n in offsets if n.startswith("count."))
        if (self["magic"], self["version"]) != (CONTROL_MAGIC, CONTROL_VERSION):
            raise SlowSourceError(f"{path} is of another version; build slowsource again")

    def __getitem__(self, name: str) -> int:
        return self._words[self.offsets[name] // 8]

    def __setitem__(self, name: str, value: int) -> None:
        self._words[self.offsets[name] // 8] = value

    def close(self) -> None:
        self._words.release()
        self._map.close()


def _layout(binary: Path) -> dict[str, int]:
    """Asks the program for the layout of the control file. Returns a dict: name of a word -> the
    word's offset [bytes]."""
    printed = subprocess.run([binary, "--layout"], capture_output=True, text=True, check=False)
    try:
        pairs = [line.split() for line in printed.stdout.splitlines()]
        offsets = {name: int(offset) for name, offset in pairs}
    except ValueError:
        offsets = {}
    if "ready" not in offsets:
        raise SlowSourceError(f"{binary} is not the slow source; build it again")
    return offsets


def _is_written(control: Path, offsets: dict[str, int]) -> bool:
    """Whether the program has written the magic number, the last word that it writes."""
    at = offsets["magic"]
    try:
        return control.read_bytes()[at : at + 8].strip(b"\0") != b""
    except FileNotFoundError:
        return False


def _may_allow_others() -> bool:
    if os.geteuid() == 0:
        return True
    try:
        lines = Path("/etc/fuse.conf").read_text(errors="replace").splitlines()
    except OSError:
        return False
    return "user_allow_other" in map(str.strip, lines)


def _is_mounted(mountpoint: Path) -> bool:
    """Whether the kernel's table of mounts contains the mount point. The mount point itself is not
    examined, because that hangs if the program `slowsource` hangs."""
    escaped = str(mountpoint).translate({ord(each): f"\\{ord(each):03o}" for each in " \t\n\\"})
    table = os.fsdecode(Path("/proc/self/mounts").read_bytes())
    return f"\nslowsource {escaped} " in f"\n{table}"


def _unmount(mountpoint: Path) -> None:
    """Unmounts the source. If unmounting fails, for example because files are open (EBUSY),
    detaches the mount."""
    if tool := shutil.which("fusermount3"):
        commands = [[tool, "-u", str(mountpoint)], [tool, "-u", "-z", str(mountpoint)]]
    elif tool := shutil.which("umount"):
        commands = [[tool, str(mountpoint)], [tool, "-l", str(mountpoint)]]
    else:
        return  # the program unmounts by itself when it ends
    for command in commands:
        if _is_mounted(mountpoint):
            subprocess.run(command, capture_output=True, check=False, timeout=MOUNT_LIMIT_S)
