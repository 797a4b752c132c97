"""Programs list directories with different functions. The catalog's answers have the same names,
order, inodes and types as the source's answers. Only attributes of directories are requested from
the source."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import draws
from support.files import same_without
from support.session import Session
from support.told import directories, list_each, wait_told
from transparent.conftest import Stage

from monarch_py.demo.slowsource import SlowSource

WAYS = ["plain", "rewound", "positions", "reentrant", "descriptor", "scanned"]
WAYS += ["many", "forked", "threads", "walked", "globbed"]
PLACES = ["root", "kinds", "hollow", "odd", "deep"]
# The members of WAYS that list a directory only a few times. They are used for the directory of
# 10,000 names.
CHEAP = ["plain", "rewound", "positions", "reentrant", "scanned"]


LISTINGS = [(way, place) for way in WAYS for place in PLACES]
# Without --long, only these pairs of way and directory are tested: all ways for two directories,
# and two ways for the other directories.
SOME_LISTINGS = [
    (way, place)
    for way, place in LISTINGS
    if place in ("kinds", "deep") or way in ("plain", "scanned")
]


@pytest.mark.parametrize("case", draws.cases(LISTINGS, SOME_LISTINGS), ids="-".join)
def test_every_way_to_list(stage: Stage, listings: Path, case: tuple[str, str]) -> None:
    way, place = case
    argv = [str(listings), way, str(stage.places[place])]
    if place == "root" and way in ("walked", "globbed"):
        argv[2] = str(stage.places["kinds"])
    before = stage.session.totals()["metadata_hits"]
    done = same_without(stage.session, argv)
    assert done.returncode == 0 and done.stdout
    if way not in ("walked", "globbed"):  # these open directories inside libc
        assert stage.session.totals()["metadata_hits"] > before


@pytest.mark.parametrize("way", CHEAP)
def test_ten_thousand_names(stage: Stage, listings: Path, way: str) -> None:
    done = same_without(stage.session, [str(listings), way, str(stage.places["many"])])
    assert len(done.stdout.splitlines()) > 300


@pytest.mark.parametrize("way", ["plain", "scanned", "descriptor"])
@pytest.mark.parametrize("place", ["root", "plain", "below"])
def test_a_source_that_is_a_mount_with_another_below(
    mounted: Stage, listings: Path, way: str, place: str
) -> None:
    same_without(mounted.session, [str(listings), way, str(mounted.places[place])])


@pytest.mark.parametrize(
    "spelling",
    [
        "{root}//kinds",
        "{root}/kinds/",
        "{root}/kinds/.",
        "{root}/odd/../kinds",
        "{root}/kinds/to_directory",
        "{root}/kinds/to_directory/",
        "{root}/kinds/to_directory/..",
        "{root}/kinds/file",
        "{root}/kinds/file/",
        "{root}/kinds/file/x",
        "{root}/kinds/fifo",
        "{root}/kinds/to_nothing",
        "{root}/kinds/to_itself",
        "{root}/kinds/long",
        "{root}/nothing",
        "{root}/nothing/below",
        "{root}/nothing/../kinds",
        "{root}/kinds/hollow/x",
        "",
    ],
)
def test_every_spelling_and_error(stage: Stage, listings: Path, spelling: str) -> None:
    path = spelling.format(root=stage.places["root"])
    for way in ("plain", "scanned"):
        same_without(stage.session, [str(listings), way, path])


def test_names_that_are_too_long(stage: Stage, listings: Path) -> None:
    root = str(stage.places["root"])
    for path in (f"{root}/{'n' * 256}", f"{root}/{'n' * 255}/{'n' * 256}", root + "/." * 2100):
        done = same_without(stage.session, [str(listings), "plain", path])
        assert "opendir" in done.stdout


PYTHON = {
    "walk": "for found in os.walk(root): print(found)",
    "walk_up": "for found in os.walk(root, topdown=False, followlinks=True): print(found)",
    "fwalk": "for found in os.fwalk(root): print(found[:3])",
    "walk_bytes": "for found in os.walk(os.fsencode(root)): print(found)",
    "glob": """
import glob
for pattern in ("*", "*/*", "**/file", "odd/*", "kinds/to_*", "kinds/[a-f]*", ".*", "no*/x"):
    print(pattern, glob.glob(os.path.join(root, pattern), recursive=True))
    print(glob.glob(pattern, root_dir=root, recursive=True))
""",
    "rglob": """
import pathlib
print(list(pathlib.Path(root).rglob("*")), list(pathlib.Path(root).glob("*/file")))
print(list(pathlib.Path(root).iterdir()))
""",
    "scandir": """
for folder, _, _ in os.walk(root):
    for e in os.scandir(folder):
        st = e.stat(follow_symlinks=False)
        print(e.name, e.inode(), e.is_symlink(), st[:7], st.st_mtime_ns, st.st_ctime_ns)
        print(e.is_dir(follow_symlinks=False), st.st_blocks, st.st_blksize)
        try:
            print(e.is_dir(), e.is_file())
        except OSError as error:  # a link that leads to itself
            print(error.errno)
""",
    "chdir": """
os.chdir(root)
print(os.listdir(), os.listdir("."), os.listdir("kinds/.."))
os.chdir("kinds/to_directory")
print(os.listdir(), os.listdir(".."), sorted(os.listdir("../../odd")))
""",
    "tree_size": "import shutil; print(sum(os.lstat(os.path.join(d, f)).st_size"
    " for d, _, fs in os.walk(root) for f in fs))",
}


@pytest.mark.parametrize("name", PYTHON)
def test_python(stage: Stage, name: str) -> None:
    script = "import os, sys; root = sys.argv[1]\n" + PYTHON[name]
    words = [sys.executable, "-I", "-S", "-c", "sys=__import__('sys')\n"
             "sys.stdout.reconfigure(errors='backslashreplace')\n" + script]  # fmt: skip
    done = same_without(stage.session, [*words, str(stage.places["root"])], env={"PYTHONUTF8": "1"})
    assert (done.returncode, done.stderr) == (0, "")


TOOLS = [
    "ls -laR",
    "ls -lnU --time=ctime",
    "ls -i1U",
    "find",
    "find -L",
    "du -ab",
    "stat -c %n:%i:%s:%f:%h:%W:%Y:%Z",
    "tar -cf - --sort=none",
]


@pytest.mark.parametrize("tool", TOOLS)
def test_tools(stage: Stage, tool: str) -> None:
    argv = [*tool.split(), str(stage.places["kinds"])]
    if argv[0] == "find":
        argv.append("-ls")
    same_without(stage.session, argv)


@pytest.fixture
def slow(tmp_path: Path, slowsource_binary: Path) -> Iterator[SlowSource]:
    """A source that has a directory of images for each class, and counts the operations on it. The
    kernel caches none of the source's names and attributes."""
    backing, mountpoint = tmp_path / "backing", tmp_path / "mount"
    mountpoint.mkdir()
    for label in ("ant", "bee", "cat"):
        (backing / "train" / label).mkdir(parents=True)
        for i in range(20):
            (backing / "train" / label / f"{i:03d}.jpg").write_bytes(b"image %d" % i)
    (backing / "latest").symlink_to("train")
    with SlowSource(backing, mountpoint, binary=slowsource_binary, attr_timeout=0) as source:
        yield source


SCRIPTS = {
    "walk": "assert len(list(os.walk(root))) == 5",
    "image_folder": """
classes = sorted(e.name for e in os.scandir(root + "/train") if e.is_dir())
found = [(os.path.join(d, f), classes.index(c)) for c in classes
         for d, _, fs in sorted(os.walk(f"{root}/train/{c}", followlinks=True)) for f in sorted(fs)]
assert len(found) == 60
assert all(os.path.isfile(path) and os.path.getsize(path) for path, _ in found)
""",
    "exists": """
assert os.path.exists(root + "/train/ant/000.jpg") and os.path.exists(root + "/latest/ant")
assert os.path.islink(root + "/latest") and os.access(root + "/train/bee/001.jpg", os.F_OK)
""",
    "glob": "import glob; assert len(glob.glob(root + '/train/*/*.jpg')) == 60",
    "libc's realpath": """
import ctypes
libc = ctypes.CDLL(None)
libc.realpath.restype = libc.canonicalize_file_name.restype = ctypes.c_char_p
room = ctypes.create_string_buffer(4096)
for name in ("latest/ant/000.jpg", "train/./bee/../cat/001.jpg"):
    path = os.fsencode(root + "/" + name)
    real = os.fsencode(root + "/train/" + "/".join(name.split("/")[-2:]))
    ctypes.memset(room, ord("x"), len(room))
    assert libc.realpath(path, room) == room.value == libc.canonicalize_file_name(path) == real
""",
    "realpath": "assert os.path.realpath(root + '/latest/ant') == root + '/train/ant'",
    "rglob": "import pathlib; assert len(list(pathlib.Path(root).rglob('*.jpg'))) == 60",
    "statvfs": "os.statvfs(root); os.statvfs(root + '/train/ant')",
    "datasets": """
import pathlib
for path in pathlib.Path(root, "train").iterdir():
    assert path.is_dir() and path.stat().st_mode and len(list(path.iterdir())) == 20
""",
}
TENSORFLOW = """
import tensorflow as tf
assert len(tf.io.gfile.glob(root + "/train/*/*.jpg")) == 60
assert tf.io.gfile.exists(root + "/train/ant/000.jpg")
assert len(tf.io.gfile.listdir(root + "/train")) == 3 and len(list(tf.io.gfile.walk(root))) > 4
"""
# The scripts that are tested without --long: those whose calls differ most from each other.
SHORT = ["image_folder", "exists", "libc's realpath", "rglob", "statvfs"]


def operations(session: Session, source: SlowSource, script: str, *, preload: bool) -> Counter[str]:
    """Runs a script with the path of the source. Returns, for each kind of operation, how many
    operations reach the source."""
    source.reset()
    head = "import os, sys; root = sys.argv[1]\n"
    session.python(head + script, source.mountpoint, preload=preload)
    return Counter({kind: count for kind, count in source.counts().items() if count})


def compare_operations(session: Session, slow: SlowSource, script: str) -> tuple[int, int]:
    """Runs the script with the library, and then without it. Returns how many operations reach the
    source in the two runs. Checks that the library does not increase the number of operations of
    any kind."""
    time.sleep(1)  # lets the results of earlier checks of directories expire
    with_it = operations(session, slow, script, preload=True)
    without = operations(session, slow, script, preload=False)
    # Each process reads the attributes of the source's root once.
    with_it["getattr"] -= min(with_it["getattr"], 1)
    assert not with_it - without, (with_it, without)
    # Under the library, nothing at the source is listed or opened, and only the attributes of
    # directories are requested.
    assert set(+with_it) <= {"getattr", "other"}
    return with_it.total(), without.total()


def test_the_source_is_only_looked_at(
    session_factory: Callable[..., Session], slow: SlowSource
) -> None:
    session = session_factory(slow.mountpoint).start()
    wait_told(session, directories(slow.mountpoint))
    for name in draws.sized(SHORT, list(SCRIPTS)):
        with_it, without = compare_operations(session, slow, SCRIPTS[name])
        # os.walk asks for the attributes of each of the five directories twice. Each time, the
        # kernel also requests the attributes of the directories above.
        assert with_it <= 50 and without > 0, name


# This test takes long, because it loads tensorflow twice. Without --long, the test above covers
# this case: the scripts of that test make the same calls.
@pytest.mark.long
def test_tensorflow_only_looks_at_the_source(
    session_factory: Callable[..., Session], slow: SlowSource
) -> None:
    if find_spec("tensorflow") is None:
        pytest.skip("tensorflow is missing: install the extra 'programs'")
    session = session_factory(slow.mountpoint).start()
    wait_told(session, directories(slow.mountpoint))
    with_it, without = compare_operations(session, slow, TENSORFLOW)
    assert with_it < without / 10


def test_a_directory_that_changes_while_it_is_scanned_is_not_told_before_its_time(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    """A directory may have changed just after the daemon listed it. The directory's timestamp need
    not show this change, because two changes within one tick of the clock give the same timestamp.
    So the catalog does not answer for the directory until the daemon has listed it again."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "one").touch()
    session = session_factory(source).start()
    session.wait_scanned()
    (source / "two").touch()  # this change is made without the library, right after the scan
    assert list_each(session, [os.fsencode(source)]) == 0
    found = session.python("import os, sys; print(sorted(os.listdir(sys.argv[1])))", source)
    assert found == "['one', 'two']\n"
