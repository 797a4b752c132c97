"""Tests of changes that programs make by functions that are easy to overlook. Also tests of
processes that might not see the same files as the daemon: threads with their own root directory,
and processes of the user root without capabilities.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from csrc.building import build_program
from support.files import Files, digest
from support.mounts import Mounts
from support.segments import is_changed, segments
from support.session import Session
from support.watch import settle

HERE = Path(__file__).parent
SOURCE = HERE / "unseen.c"
WAYS = re.findall(r'^    \{"(\w+)", ', SOURCE.read_text(), re.M)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("unseen")
    # Like libc, this library is loaded after Monarch's library. It has functions that older
    # versions of libc lack.
    newer = build_program(place / "libnewer.so", HERE / "newer_libc.c", flags=["-fPIC", "-shared"])
    flags = ["-Wl,--no-as-needed", str(newer)]
    return build_program(place / "unseen", SOURCE, flags=flags)


def missing(way: str) -> str:
    if way == "by_handle":
        return "file handles are missing: put the tests' directory on another file system"
    return "openat2 or pidfds are missing: use Linux 5.6"


@pytest.mark.parametrize("way", WAYS)
def test_the_change_is_recorded(
    session_factory: Callable[..., Session], tmp_path: Path, program: Path, way: str
) -> None:
    if way == "by_handle" and os.geteuid() != 0:
        pytest.skip("only root may open files by their handles: run the tests as root")
    root = tmp_path / "source"
    (root / "d").mkdir(parents=True)
    path = root / "f0"
    path.write_bytes(b"-" * 100)
    session = session_factory(root)
    with segments(session) as daemon:
        done = session.run([program, way, root])
        if done.returncode == 77:
            pytest.skip(missing(way))
        assert (done.returncode, done.stderr) == (0, "")
        assert path.read_bytes().startswith(b"SPAWNED")
        assert is_changed(daemon, path)


@pytest.mark.parametrize("way", [way for way in WAYS if re.search("openat2|pidfd", way)])
def test_others_read_what_was_written_by_functions_newer_than_libc(
    session_factory: Callable[..., Session], files: Files, program: Path, way: str
) -> None:
    path = files.add("f0", 3000)
    session = session_factory(files.root).start()
    settle(session)

    def read() -> str:
        return session.run(["sha256sum", path]).stdout.split()[0]

    hits = session.totals()["hits"]
    assert read() == files.digests["f0"]
    assert session.totals()["hits"] > hits
    done = session.run([program, way, files.root])
    if done.returncode == 77:
        pytest.skip(missing(way))
    assert (done.returncode, done.stderr) == (0, "")
    written = path.read_bytes()
    assert written.startswith(b"SPAWNED")
    assert read() == digest(written)


def test_root_without_its_rights_gets_what_the_kernel_gives(
    session_factory: Callable[..., Session], files: Files
) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("root and setpriv are missing: run the tests as root, install util-linux")
    closed, open_to_all = files.path("f00000"), files.path("f00001")
    for path in (closed, open_to_all):
        os.chown(path, 65534, 65534)
    closed.chmod(0o600)
    session = session_factory(files.root).start()
    settle(session)
    script = (
        f"cat {open_to_all} | wc -c; cat {closed}; test -r {closed}; echo $?; stat -c %a {closed}"
    )
    dropped = "-dac_override,-dac_read_search"
    for words in (
        ["setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}"],
        ["unshare", "--user", "--map-root-user"],
    ):
        hits = session.totals()["hits"]
        plain = session.run([*words, "sh", "-c", script], preload=False)
        assert "Permission denied" in plain.stderr
        seen = session.run([*words, "sh", "-c", script])
        assert (seen.stdout, seen.stderr) == (plain.stdout, plain.stderr)
        assert session.totals()["hits"] == hits
    assert session.run(["sha256sum", closed]).returncode == 0
    assert session.totals()["hits"] > hits


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "source").add_many(4, 3000)


# One thread gets its own root directory, in which the same path leads to another file.
OWN_ROOT = """
import ctypes, os, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
path, other = sys.argv[1:]
def read():
    fd = os.open(path, os.O_RDONLY)
    data = os.read(fd, 5)
    os.close(fd)
    return data
here, there = threading.Barrier(2), []
def part():
    assert libc.unshare(0x200) == 0  # CLONE_FS
    assert libc.chroot(other.encode()) == 0
    here.wait()
    here.wait()
    there.append(read())
expected = read()
thread = threading.Thread(target=part)
thread.start()
here.wait()
assert read() == expected
here.wait()
thread.join()
assert there == [b"other"], there
assert read() == expected
"""


def test_a_thread_with_a_root_of_its_own(
    session_factory: Callable[..., Session], tmp_path: Path, files: Files
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may change its root: run the tests as root")
    session = session_factory(files.root).start()
    settle(session)
    other, path = tmp_path / "other", files.path("f00002")
    copy = Path(f"{other}{path}")
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"other")
    session.python(OWN_ROOT, path, other)
    plain = session.run(["python3", "-c", OWN_ROOT, path, other], preload=False)
    assert (plain.returncode, plain.stderr) == (0, "")


@pytest.fixture(scope="session")
def root_race(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [HERE / name for name in ("root_race.c", "hold.c")]
    return build_program(tmp_path_factory.mktemp("race") / "race", *sources, flags=["-pthread"])


def test_the_root_changes_while_another_thread_finds_out_whether_it_is_ours(
    session_factory: Callable[..., Session],
    mounts: Mounts,
    tmp_path: Path,
    files: Files,
    root_race: Path,
) -> None:
    """After a chroot, opens return the file in the new root. This holds even if the chroot happens
    while another thread checks whether the source is visible (see root_race.c). As in some
    containers, the new root contains /proc, the tier and the daemon's segments. Only the source
    differs."""
    place = tmp_path / "session"
    session = session_factory(files.root, directory=place).start()
    settle(session)
    other, path = tmp_path / "mounts" / "other", files.path("f00002")
    there = Path(f"{other}{path}")
    there.parent.mkdir(parents=True)
    there.write_bytes(b"other")
    mounts.bind("other/proc", Path("/proc"))
    mounts.bind(f"other{place}", place)
    looks = 0
    for nth in itertools.count(1):
        done = session.run([root_race, path, other, str(nth)])
        if done.returncode == 77:
            pytest.skip(f"seccomp filters cannot notify a listener here: {done.stderr}")
        assert (done.returncode, done.stderr) == (0, "")
        is_held, found = done.stdout.splitlines()
        assert found == f"5 {b'other'.hex()}"
        if not int(is_held):
            break
        looks = nth
    assert looks >= 2, "the library has not checked both the root and the mount namespace"
