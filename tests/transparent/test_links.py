"""Tests paths that lead into a source through a symbolic link outside every source."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from autostart.started import needs
from csrc.building import build_preload
from support import draws
from support.files import random_bytes
from support.mounts import Mounts
from support.session import Session, wait_until
from support.steps import Steps
from support.told import directories, wait_told

from monarch_py.demo.slowsource import SlowSource, find_slowsource, why_unavailable

HERE = Path(__file__).resolve().parent


def make_source(root: Path, seed: int) -> Path:
    """Makes a source with nested directories, files of several sizes, and symbolic links."""
    for i, folder in enumerate(("", "a", "a/b", "a/b/c", "d")):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name in ("x", "y", f"only{i}"):
            (root / folder / name).write_bytes(random_bytes(100 + 977 * i, (seed, folder, name)))
    (root / "a" / "up").symlink_to("..")
    (root / "d" / "far").symlink_to("../a/b")
    (root / "d" / "file").symlink_to(root / "a" / "x")
    return root


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, Path]]:
    """A session with two sources, and a directory in which links.py makes its links. This directory
    is outside the sources, and contains a tree with the same names as the sources."""
    top = tmp_path_factory.mktemp("links")
    sources = [make_source(top / name, seed) for seed, name in enumerate(("source", "other"))]
    home = top / "home"
    for place in ("one/two", "three"):
        (home / place).mkdir(parents=True)
    make_source(home / "decoy", 7)
    os.link(sources[0] / "a" / "x", home / "decoy" / "hard")
    with Session(top, sources) as session:
        session.start()
        yield session, home


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowSource]:
    binary = find_slowsource()
    if binary is None or why_unavailable(binary):
        pytest.skip("no FUSE file system can be mounted here")
    behind = tmp_path / "behind"
    (tmp_path / "source").mkdir()
    for i in range(3):
        (behind / f"class{i}").mkdir(parents=True)
        for j in range(20):
            (behind / f"class{i}" / str(j)).write_bytes(random_bytes(1000, (i, j)))
    with SlowSource(behind, tmp_path / "source", binary=binary, attr_timeout=60) as source:
        yield source


@pytest.mark.parametrize("seed", draws.seeds(4))
def test_random_paths(linked: tuple[Session, Path], seed: int) -> None:
    """Calls with random paths through links have the same results with and without the library.
    With seed 0, the calls are made while the files are being copied. With other seeds, all copies
    exist."""
    session, home = linked
    if seed == 1:
        session.wait_all_present()
    sources = [source["path"] for source in session.status()["sources"]]
    steps = draws.sized(600, 1500)
    words = [sys.executable, "-I", "-S", HERE / "links.py", home, seed, steps, *sources]
    before = session.totals()["hits"]
    ours = session.run([str(word) for word in words])
    hits = session.totals()["hits"] - before
    plain = session.run([str(word) for word in words], preload=False)
    assert (plain.returncode, plain.stderr) == (0, "")
    assert (ours.returncode, ours.stderr) == (0, "")
    assert ours.stdout.splitlines() == plain.stdout.splitlines()
    reads = int(plain.stdout.splitlines()[-1])
    assert reads > steps / 7.5
    assert seed == 0 or hits > 0.6 * reads


# Forked readers read a file through a link, while the parent sets the link to one version of the
# file after another. A read must not find a version that is older than the link's version at the
# beginning of the read. Nor may it find a version that is newer than the one to which the parent
# was setting the link when the read ended. Shared memory tells the readers the numbers of both
# versions.
REPOINT = """
import ctypes, mmap, os, sys, threading
home, versions, number = sys.argv[1], int(sys.argv[2]), {"x86_64": 316, "aarch64": 276}
libc, shared = ctypes.CDLL(None, use_errno=True), mmap.mmap(-1, 4096)
begun, done, read = (ctypes.c_long.from_buffer(shared, 64 * i) for i in range(3))
path, wrong = home + "/link/sub/f", 0
def reader(open_it):
    global wrong
    while done.value < versions - 1:
        least = done.value
        with open_it() as file:
            found = int(file.read())
        if not least <= found <= begun.value:
            wrong += 1
            print("found", found, "between", least, "and", begun.value, flush=True)
        read.value += 1
def relative():
    return open("link/sub/f")
def plain():
    return open(path)
def by_file():
    return open(home + "/file")
os.chdir(home)
children = []
for ways in ([plain, relative], [by_file, plain]):
    child = os.fork()
    if not child:
        threads = [threading.Thread(target=reader, args=(way,)) for way in ways]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        os._exit(wrong > 0)
    children.append(child)
for i in range(1, versions):
    seen = read.value
    for name, below in (("link", ""), ("file", "/sub/f")):
        os.symlink(f"../source/v{i}{below}", f"{home}/{name}~")
    begun.value = i
    for name in ("link", "file"):
        if libc.syscall(number[os.uname().machine], -100, f"{home}/{name}~".encode(),
                        -100, f"{home}/{name}".encode(), 0):
            raise OSError(ctypes.get_errno(), "renameat2")
    done.value = i
    while read.value < seen + 4: pass
sys.exit(any([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))
"""


def test_a_link_is_never_followed_to_where_it_led_before(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    """A link is set to one version of a file after another. Meanwhile, threads of two processes
    read through the link. No read finds a version that is older than the link's target was at the
    start of the read."""
    versions = draws.sized(150, 500)
    home = tmp_path / "home"
    home.mkdir()
    for i in range(versions):
        (tmp_path / "source" / f"v{i}" / "sub").mkdir(parents=True)
        (tmp_path / "source" / f"v{i}" / "sub" / "f").write_text(str(i))
    (home / "link").symlink_to("../source/v0")
    (home / "file").symlink_to("../source/v0/sub/f")
    session = session_factory(tmp_path / "source").start()
    session.wait_all_present()
    before = session.totals()["hits"]
    words = [sys.executable, "-I", "-S", "-c", REPOINT, str(home), str(versions)]
    done = session.run(words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert session.totals()["hits"] - before > versions


# In each of two epochs, this script does what a data loader does: it lists all files, reads their
# attributes, and reads their content.
EPOCHS = """
import os, sys
for epoch in range(2):
    found = []
    for folder, _, names in os.walk(sys.argv[1], followlinks=True):
        found += [os.path.join(folder, name) for name in names]
    assert len(found) == int(sys.argv[2]), found
    for path in found:
        assert os.path.isfile(path) and os.stat(path).st_size == 1000
        with open(path, "rb") as file:
            assert len(file.read()) == 1000
    open(path).close()
"""


def test_what_reaches_the_source(session_factory: Callable[..., Session], slow: SlowSource) -> None:
    """Programs read all files through links to directories, or through links to single files. For
    links to directories, the source sees at most one open per link, and few other operations. For
    links to single files, the source sees at most one open in all. The library also reads a file's
    attributes each time a program opens a link to the file, but after the first time the kernel has
    cached them."""
    files, home = [], slow.backing.parent / "home"
    for i in range(3):
        for j in range(20):
            files.append(f"class{i}/{j}")
    (home / "files").mkdir(parents=True)
    for name in files:
        (home / "files" / name.replace("/", "-")).symlink_to(slow.mountpoint / name)
    (home / "data").symlink_to(slow.mountpoint)
    (home / "classes").mkdir()
    for i in range(3):
        (home / "classes" / f"c{i}").symlink_to(slow.mountpoint / f"class{i}")
    session = session_factory(slow.mountpoint).start()
    wait_told(session, directories(slow.mountpoint))
    session.wait_all_present()
    # Some directories are reached by a link, or contain links to files. The first open or listing
    # in each of these directories goes to the source. The source's answer shows the library where
    # the path leads.
    for name, opens in (("data", 1), ("classes", 3), ("files", 1)):
        slow.reset()
        session.python(EPOCHS, str(home / name), str(len(files)))
        ours = slow.counts()
        slow.reset()
        session.python(EPOCHS, str(home / name), str(len(files)), preload=False)
        plain = slow.counts()
        assert ours["open"] <= opens
        assert plain["open"] == 2 * (len(files) + 1)
        # In the first epoch, the kernel caches the attributes of the files, so later requests do
        # not reach the source.
        looks = len(files) if name == "files" else 19
        assert ours["getattr"] + ours["readdir"] <= looks


@pytest.mark.parametrize("settings", [{"scan": "lazy"}, {"scan_rate": 1}])
def test_files_beside_a_source_cost_nothing_before_the_scan_is_complete(
    session_factory: Callable[..., Session], tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Before the scan is complete, the library cannot tell whether a file on a source's device is
    in the source. If a file outside the sources is opened again and again, the library determines
    the file's location only at every 64th open."""
    needs("strace")
    source = tmp_path / "source"
    for number in range(10):
        (source / str(number)).mkdir(parents=True)
    (tmp_path / "beside").write_text("x")
    session = session_factory(source, **settings).start()
    many = "import os, sys; [os.close(os.open(sys.argv[1], 0)) for _ in range(640)]"
    trace = ["strace", "-o", tmp_path / "trace", "-e", "trace=readlinkat"]
    words = [*trace, sys.executable, "-c", many, tmp_path / "beside"]
    done = session.run([str(word) for word in words])
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "trace").read_text().count("/proc/self/fd/") < 60


def raw(*words: str | Path) -> None:
    """Runs a command without the library."""
    subprocess.run([str(word) for word in words], check=True, env={"PATH": os.environ["PATH"]})


# Reads a path from each line of its input, and prints the file's content or the error.
READER = """
import sys
for line in sys.stdin:
    try: print(open(line.strip()).read(), flush=True)
    except OSError as error: print(error.strerror, flush=True)
"""


class Reader:
    """A process under the library that reads files on request, while links and directories
    change."""

    def __init__(self, session: Session, *, prefix: tuple[str | Path, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*map(str, prefix), sys.executable, "-I", "-S", "-c", READER],
            env=session.env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def __call__(self, path: Path | str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().rstrip("\n")


@pytest.fixture
def versions(session_factory: Callable[..., Session], tmp_path: Path) -> Session:
    """A session over two directories, `a` and `b`, with a file `f` in each. The directory `home`
    has a symbolic link to `a`, a symbolic link to `a/f`, and a hard link to `b/f`."""
    for name in ("a", "b"):
        (tmp_path / "source" / name).mkdir(parents=True)
        (tmp_path / "source" / name / "f").write_text(name)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "link").symlink_to(tmp_path / "source" / "a")
    (tmp_path / "home" / "file").symlink_to(tmp_path / "source" / "a" / "f")
    os.link(tmp_path / "source" / "b" / "f", tmp_path / "home" / "hard")
    session = session_factory(tmp_path / "source", revalidate="1s").start()
    session.wait_all_present()
    return session


def test_a_directory_that_was_moved_is_not_what_has_its_name_now(
    versions: Session, tmp_path: Path
) -> None:
    """A directory is moved, and a new directory gets its name. The catalog still records the moved
    directory's inode under the old name. A path through a link must nevertheless lead to the file
    in the link's target directory."""
    source, link = tmp_path / "source", tmp_path / "home" / "link"
    with Reader(versions) as read:
        before = versions.totals()["hits"]
        assert [read(link / "f") for _ in range(3)] == ["a"] * 3
        assert versions.totals()["hits"] > before
        raw("mv", source / "a", tmp_path / "home" / "moved")
        raw("mkdir", source / "a")
        raw("sh", "-c", f"echo -n new > {source}/a/f")
        assert read(link / "f") == "new"
        wait_until(lambda: read(source / "a" / "f") == "new", what="the new file by its own name")
        raw("ln", "-sfn", tmp_path / "home" / "moved", link)
        assert [read(link / "f") for _ in range(3)] == ["a"] * 3
        raw("rm", "-r", tmp_path / "home" / "moved")
        assert read(link / "f") == "No such file or directory"


def test_what_is_written_by_one_name_is_read_by_all(versions: Session, tmp_path: Path) -> None:
    home = tmp_path / "home"
    names = [tmp_path / "source" / "a" / "f", home / "link" / "f", home / "file"]
    with Reader(versions) as read:
        for name in names * 2:
            assert read(name) == "a"
        for i, name in enumerate(names):
            versions.python(f"open({str(name)!r}, 'w').write('changed{i}')")
            assert [read(each) for each in names] == [f"changed{i}"] * 3
        assert [read(home / "hard") for _ in range(3)] == ["b"] * 3
        # A process without the library writes to the file through the hard link, so no process
        # records this change. The library notices it only because it reads the file's attributes
        # each time the file is opened through the hard link.
        raw("sh", "-c", f"echo -n again > {home}/hard")
        assert read(home / "hard") == "again"
        versions.python(f"open({str(home / 'hard')!r}, 'w').write('all')")
        assert read(tmp_path / "source" / "b" / "f") == read(home / "hard") == "all"


def test_more_links_than_are_remembered(versions: Session, tmp_path: Path) -> None:
    many = 6000
    script = """
import os, sys
home, many = sys.argv[1], int(sys.argv[2])
os.mkdir(home + "/many")
for i in range(many):
    os.symlink(home + "/../source/" + "ab"[i % 2], f"{home}/many/{i}")
for turn in range(2):
    for i in range(many):
        with open(f"{home}/many/{i}/f") as file: assert file.read() == "ab"[i % 2], i
"""
    before = versions.totals()["hits"]
    versions.python(script, tmp_path / "home", str(many))
    assert versions.totals()["hits"] - before > many / 4


def test_another_mount_of_the_source(versions: Session, tmp_path: Path) -> None:
    """The source is mounted a second time. Paths through the second mount give the right files,
    even while another file system covers a directory in the second mount only."""
    source, home = tmp_path / "source", tmp_path / "home"
    with Mounts(home) as mounts, Reader(versions) as read:
        mount = mounts.bind("mount", source)
        for _ in range(3):
            assert [read(mount / name / "f") for name in "ab"] == ["a", "b"]
        with Mounts(mount) as below:
            # The new file system covers the directory `a`, and also has a file `f`.
            (below.cover(mount / "a") / "f").write_text("on top")
            assert read(mount / "a" / "f") == "on top"
            assert [read(home / "link" / "f"), read(source / "a" / "f")] == ["a", "a"]
            raw("ln", "-sfn", mount, home / "link")
            for _ in range(3):
                assert [read(home / "link" / name / "f") for name in "ab"] == ["on top", "b"]
        assert [read(home / "link" / name / "f") for name in "ab"] == ["a", "b"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its root")
def test_the_same_path_below_another_root(versions: Session, tmp_path: Path) -> None:
    path = tmp_path / "home" / "link" / "f"
    there = tmp_path / "root" / path.relative_to("/")
    there.parent.mkdir(parents=True)
    there.write_text("there")
    script = """
import os, sys
print([open(sys.argv[1]).read() for _ in range(3)])
os.chroot(sys.argv[2])
print([open(sys.argv[1]).read() for _ in range(3)])
"""
    said = versions.python(script, path, tmp_path / "root")
    assert said.splitlines() == [repr(["a"] * 3), repr(["there"] * 3)]


def test_a_process_that_opens_one_file_is_served_too(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    """A process that opens only one file, through a link, still gets the file's copy if there is
    one. Examples of such processes are the commands of a shell loop, and a worker that reads one
    HDF5 file."""
    root = tmp_path / "source"
    root.mkdir()
    (root / "shard").write_bytes(b"content" * 1000)
    (tmp_path / "data").symlink_to(root)
    session = session_factory(root).start()
    session.wait_scanned()
    script = """
import ctypes, fcntl, os, sys
fd = ctypes.CDLL(None).open(os.fsencode(sys.argv[1]), os.O_RDONLY | int(sys.argv[2]))
data = os.read(fd, 1 << 20)
print(fd, data == b"content" * 1000, fcntl.fcntl(fd, fcntl.F_GETFD), os.fstat(fd).st_ino)
"""
    inode = (root / "shard").stat().st_ino
    for number, flag in enumerate((os.O_CLOEXEC, 0, os.O_CLOEXEC, 0)):
        before = session.totals()
        said = session.python(script, tmp_path / "data/shard", str(flag))
        assert said == f"3 True {int(flag != 0)} {inode}\n"
        session.wait_idle()
        after = session.totals()
        assert after["opens"] - before["opens"] == 1
        assert after["hits"] - before["hits"] == int(number > 0)


def test_its_locks_are_kept(session_factory: Callable[..., Session], tmp_path: Path) -> None:
    """The first open through a link does not drop the process's POSIX locks on the file. The
    library must therefore not replace the descriptor that this open returns with a descriptor of
    the copy. The replacement would close a descriptor of the source file, and the kernel would drop
    the locks."""
    root = tmp_path / "source"
    root.mkdir()
    (root / "shard").write_bytes(b"content" * 1000)
    (tmp_path / "data").symlink_to(root)
    session = session_factory(root).start()
    session.wait_all_present()
    script = """
import fcntl, os, subprocess, sys
held = os.open(sys.argv[1], os.O_RDONLY)
fcntl.lockf(held, fcntl.LOCK_SH)
fd = os.open(sys.argv[2], os.O_RDONLY)
print(os.read(fd, 7), flush=True)
other = '''
import fcntl, os, sys
fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
'''
print(subprocess.run([sys.executable, "-c", other, sys.argv[1]], stderr=-3).returncode)
"""
    said = session.python(script, root / "shard", tmp_path / "data/shard")
    assert said == "b'content'\n1\n"


# Reads the file twice. During the second open, the process stops in the middle of the look-up.
STOPPED = """
library, path, is_stream = os.environ["LD_PRELOAD"], sys.argv[1], sys.argv[2] == "fopen"
libc.fopen.restype = ctypes.c_void_p
def read():
    if not is_stream:
        return sha(open(path, "rb").read())
    f, room = ctypes.c_void_p(libc.fopen(path.encode(), b"r")), ctypes.create_string_buffer(1 << 16)
    n = libc.fread(room, 1, 1 << 16, f)
    libc.fclose(f)
    return sha(room.raw[:n])
step(read())
ctypes.c_int.in_dll(ctypes.CDLL(library), "stop_next").value = 1
step(read())
"""


@pytest.fixture(scope="module")
def stopping_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds a preload library that contains held_look.c. At the program's request, this library
    stops the process in the middle of a look-up."""
    library = tmp_path_factory.mktemp("stopping") / "libmonarch.so"
    build_preload(library, HERE / "held_look.c", flags=["-Wl,--wrap=monarch_is_as_scanned"])
    return library


@pytest.mark.parametrize("way", ["open", "fopen"])
def test_a_file_that_is_replaced_while_it_is_looked_up(
    session_factory: Callable[..., Session], tmp_path: Path, stopping_library: Path, way: str
) -> None:
    """A source file has a second hard link. While a program looks up this link, the source file is
    replaced and copied again. The program's open of the link still gets the old file, not the new
    copy."""
    root, other = tmp_path / "source", tmp_path / "elsewhere"
    root.mkdir()
    other.mkdir()
    old, new = random_bytes(5000, "old"), random_bytes(5000, "new")
    (root / "a").write_bytes(old)
    os.link(root / "a", other / "a")
    session = session_factory(root, preload=stopping_library).start()
    session.wait_all_present()
    with Steps(session, STOPPED, other / "a", way) as program:
        assert program.wait() == [hashlib.sha256(old).hexdigest()]
        program.go()
        stat = Path(f"/proc/{program.process.pid}/stat")
        wait_until(lambda: stat.read_text().rsplit(")")[-1].split()[0] == "T", what="the stop")
        (tmp_path / "new").write_bytes(new)
        (tmp_path / "new").rename(root / "a")
        assert session.monarch("warm", str(root / "a")).returncode == 0
        program.process.send_signal(signal.SIGCONT)
        assert program.wait() == [hashlib.sha256(old).hexdigest()]
        program.go()
        program.end()
