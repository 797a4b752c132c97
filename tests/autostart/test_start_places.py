"""Tests of the situations in which an open starts no daemon, and of the time that the open then
takes."""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from autostart.started import CAT, Started, needs
from support.files import Files
from support.session import Session, wait_until

# Prepares a directory for a chroot, in which the file, the configuration and /proc have the same
# paths as outside. Then runs a command.
JAIL = """
mkdir -p "$0/proc" "$0$1"
mount --rbind /proc "$0/proc"; mount --rbind "$1" "$0$1"
shift; exec "$@"
"""


# Any user can set up the situations in ANYWHERE; the others need root.
ANYWHERE = ["handler", "vfork", "subreaper", "privileges"]
PLACES = [*ANYWHERE, "first process", "mounts", "root", "group", "pids", "net"]


@pytest.mark.parametrize("place", PLACES)
def test_no_start_where_it_could_do_harm(
    site: Started,
    files: Files,
    places: Path,
    place: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if place not in ANYWHERE and os.geteuid() != 0:
        pytest.skip("only root may change namespaces, its root or its group: run the tests as root")
    site.learn()
    prefix = []
    if place == "root":
        jail = tmp_path_factory.mktemp("jail")
        prefix = ["unshare", "--mount", "sh", "-c", JAIL, str(jail), str(files.root.parent)]
        place = str(jail)
    if place == "first process":  # of a pid namespace
        prefix = ["unshare", "--pid", "--fork", "--kill-child"]
    done = site.run(places, place, files.path("f00001"), prefix=prefix)
    assert done.returncode == 0, done.stderr
    assert site.starts() == 0


def test_where_starts_are_used_up_an_open_costs_nothing(site: Started, tmp_path: Path) -> None:
    needs("strace")
    site.learn()
    (tmp_path / "other").write_text("x")
    recent = [time.monotonic_ns() - ago * 10**9 & ~1 for ago in (20, 30, 40)]
    site.session.paths.starts.write_bytes(struct.pack("3Q", *recent))
    site.session.paths.starts.chmod(0o600)
    many = "import os, sys; [os.close(os.open(sys.argv[1], 0)) for _ in range(500)]"
    trace = ["strace", "-o", str(tmp_path / "trace"), "-e", "trace=readlinkat"]
    done = site.run(sys.executable, "-c", many, tmp_path / "other", prefix=trace)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "trace").read_text().count("/proc/self/fd/") < 100


def test_only_a_file_of_a_source_starts_it(site: Started, files: Files, tmp_path: Path) -> None:
    other = tmp_path / "source2"
    other.mkdir()
    (other / "f").write_text("x")
    site.learn()
    assert site.run(CAT, other / "f", "/etc/passwd").returncode == 0
    assert site.run("ls", files.root).returncode == 0
    assert site.run(CAT, files.path("f00001"), env={"MONARCH_AUTOSTART": "0"}).returncode == 0
    assert site.starts() == 0


def test_a_configuration_without_the_word_is_as_before(
    session_factory: Callable[..., Session], files: Files
) -> None:
    session = session_factory(files.root)
    done = session.run(["cksum", files.path("f00001")])
    assert "no daemon serves" in done.stderr
    assert not session.paths.path.exists()


def test_a_configuration_that_is_a_pipe_holds_up_no_program(site: Started, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    given = {"MONARCH_SITE_CONFIG": str(tmp_path / "pipe")}
    site.session.config.write_text("sources: []\n")
    assert site.run("/bin/true", env=given, timeout=20).returncode == 0


def test_what_is_wrong_stands_in_the_log(site: Started, files: Files) -> None:
    text = site.session.config.read_text()
    site.session.config.write_text(text.replace("tier0", "tier-of-nobody"))
    for _ in range(3):
        done = site.run(CAT, files.path("f00001"))
        assert (done.returncode, done.stderr) == (0, "")
        wait_until(lambda: "tier-of-nobody" in site.said(), what="its message")
        site.wait_for_starter()
    assert site.starts() == 1, "the failed start was not counted, or another start followed at once"
