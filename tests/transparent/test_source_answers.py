"""Some answers about a file can come only from the source's file system: holes, extents, flags, and
the numbers of the file system and the mount. A descriptor of a copy gives the same answers.
Programs that watch files with inotify see reads of files that have copies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.draws import cases
from support.files import same_without
from support.mounts import Mounts
from support.session import MIB, Session, wait_until
from support.told import wait_told

from monarch_py.demo.slowsource import SlowSource, find_slowsource, why_unavailable

ANSWERS = [sys.executable, "-I", "-S", str(Path(__file__).with_name("answers.py"))]


def make_files(source: Path) -> list[Path]:
    source.mkdir(exist_ok=True)
    (source / "plain").write_bytes(bytes(range(256)) * 100)
    (source / "empty").touch()
    with (source / "sparse").open("wb") as file:
        for at in (1 << 20, 3 << 20, (3 << 20) + 65536):
            file.seek(at)
            file.write(b"data" * 1024)
        file.truncate(8 << 20)
    with (source / "hole").open("wb") as file:
        file.truncate(MIB)
    with (source / "hole_first").open("wb") as file:
        file.seek(MIB)
        file.write(b"end")
    return sorted(path for path in source.iterdir() if path.is_file())


@dataclass
class On:
    """A session over files on a file system of one kind. The copies are on a tmpfs of their own."""

    kind: str
    session: Session
    files: list[Path]


# Kinds of file systems. Without --long, only two are tested: xfs can clone files and report where
# their blocks are, and the FUSE source can do neither.
KINDS = cases(["ext4", "xfs", "tmpfs", "fuse", "directory"], ["xfs", "fuse"])


@pytest.fixture(scope="module", params=KINDS)
def on(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[On]:
    top = tmp_path_factory.mktemp("answers")
    with ExitStack() as stack:
        mounts = stack.enter_context(Mounts(top))
        source = top / "source"
        if request.param == "ext4":
            mounts.ext4("source", 64 * MIB)
        elif request.param == "xfs":
            mounts.xfs("source", 320 * MIB)
        elif request.param == "tmpfs":
            mounts.tmpfs("source", 64 * MIB)
        if request.param == "fuse":
            binary = find_slowsource()
            if binary is None or why_unavailable(binary):
                pytest.skip("no FUSE file system can be mounted here")
            behind = top / "behind"
            source.mkdir()
            files = [source / path.name for path in make_files(behind)]
            stack.enter_context(SlowSource(behind, source, binary=binary))
        else:
            files = make_files(source)
        tier = mounts.tmpfs("tier", 64 * MIB)
        tiers = [{"mount_point": tier, "max_storage_quota": 60 * MIB}]
        os.sync()  # from now on, the files have all their blocks
        session = stack.enter_context(Session(top, source, tiers=tiers))
        session.start()
        wait_told(session, [os.fsencode(source)])
        session.wait_all_present()
        yield On(request.param, session, files)


def test_what_the_source_says(on: On) -> None:
    before = on.session.totals()["hits"]
    done = same_without(on.session, [*ANSWERS, "ask", *map(str, on.files)])
    assert (done.returncode, done.stderr) == (0, "")
    assert on.session.totals()["hits"] == before + len(on.files)  # each file was opened as a copy


STATFS = "stat -f -c %n:%t:%s:%S:%l:%i:%b:%c"


def test_of_the_file_system(on: On) -> None:
    """The catalog's answer to statfs is the same as the source's. After a pause, the catalog
    answers only after the daemon has compared it with the source again. So the test tries until the
    catalog answers."""
    for path in (on.session.source, on.files[0]):
        before = on.session.totals()["metadata_hits"]

        def is_answered(path: Path = path, before: int = before) -> bool:
            # For a directory, the catalog answers only within a second after a listing of the
            # directory.
            look = f"ls {path} >/dev/null; {STATFS} {path}"
            same_without(on.session, ["sh", "-c", look])
            return bool(on.session.totals()["metadata_hits"] > before)

        wait_until(is_answered, what="an answer of the catalog's")


ACCESS = """
import os, sys
os.listdir(sys.argv[1])  # the catalog then answers for the directory
modes = os.R_OK, os.X_OK, os.W_OK, os.R_OK | os.W_OK
print([os.access(sys.argv[1], mode) for mode in modes])
"""


def test_only_the_source_knows_whether_a_directory_may_be_written(
    session_factory: Callable[..., Session], mounts: Mounts
) -> None:
    """Once a source is read-only, access(2) reports that its directories may not be written to.
    Whether a directory may be read is still answered from the catalog. The test repeats the calls
    until the catalog answers."""
    source = mounts.tmpfs("source", MIB)
    (source / "d").mkdir()
    session = session_factory(source).start()
    wait_told(session)
    argv = [sys.executable, "-I", "-S", "-c", ACCESS, str(source / "d")]

    def is_answered(answers: list[bool]) -> bool:
        before = session.totals()["metadata_hits"]
        assert same_without(session, argv).stdout == f"{answers}\n"
        return bool(session.totals()["metadata_hits"] >= before + 3)  # with the listing

    wait_until(lambda: is_answered([True] * 4), what="answers of the catalog's")
    mounts.remount(source, "ro")
    wait_until(lambda: is_answered([True, True, False, False]), what="answers of the catalog's")
    session.stop()


def test_a_copy_is_cloned_as_its_file(on: On) -> None:
    files = [str(path) for path in on.files if path.name in ("plain", "sparse")]
    done = same_without(on.session, [*ANSWERS, "clone", *files])
    assert done.stdout.count("clone") == 2
    if on.kind == "xfs":
        assert "clone (25600, b'" in done.stdout


WATCH = """
import ctypes, os, select, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init1(os.O_NONBLOCK)
assert libc.inotify_add_watch(fd, os.fsencode(sys.argv[1]), 0x1 | 0x10 | 0x20) > 0
print("ready", flush=True)
assert sys.stdin.readline() == "read\\n"
seen, data = 0, b""
while not seen & 0x10 and select.select([fd], [], [], 20)[0]:
    data = os.read(fd, 65536)
    while data:
        _, mask, _, length = struct.unpack_from("iIII", data)
        seen |= mask & 0xfff
        data = data[16 + length:]
print(seen)
"""


@pytest.mark.parametrize("what", ["file", "directory"])
@pytest.mark.parametrize("preload", [True, False])
def test_who_watches_sees_reads(
    session_factory: Callable[..., Session], tmp_path: Path, what: str, preload: bool
) -> None:
    source = tmp_path / "source"
    files = make_files(source)
    session = session_factory(source).start()
    session.wait_all_present()
    plain = next(path for path in files if path.name == "plain")
    watched = plain if what == "file" else source
    read = "import sys; open(sys.argv[1], 'rb').read()"
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", WATCH, watched],
        env=session.env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as watcher:
        try:
            assert watcher.stdout is not None
            assert watcher.stdout.readline() == "ready\n"
            session.run([sys.executable, "-I", "-S", "-c", read, plain], preload=preload)
            out, _ = watcher.communicate("read\n", timeout=40)
        finally:
            watcher.kill()
    assert int(out) == 0x1 | 0x10 | 0x20  # IN_ACCESS, IN_CLOSE_NOWRITE and IN_OPEN


FLAGS = """
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
flags = struct.unpack("l", fcntl.ioctl(fd, 0x80086601, bytes(8)))[0]
if len(sys.argv) > 2:
    fcntl.ioctl(fd, 0x40086602, struct.pack("l", flags | int(sys.argv[2])))
print(flags)
"""
NODUMP = 0x40


def test_a_change_of_flags_is_made_at_the_source(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    """FS_IOC_SETFLAGS through a descriptor of a copy changes the flags of the source file."""
    with Mounts(tmp_path) as mounts:
        source = mounts.ext4("source", 64 * MIB)
        make_files(source)
        session = session_factory(source).start()
        session.wait_all_present()
        path = source / "plain"
        before = int(session.python(FLAGS, path, preload=False))
        assert not before & NODUMP
        session.python(FLAGS, path, str(NODUMP))
        for preload in (False, True):
            assert int(session.python(FLAGS, path, preload=preload)) == before | NODUMP
        session.stop()
