"""If another user replaces a tier's directory, the files in the new directory are never read.

The daemon and the job are Alice's. Bobby is another user of the same node.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import users
from support.files import Files
from support.session import MIB, Session, wait_until
from support.users import ALICE, BOBBY, as_user

COUNT, SIZE = 6, 5000
PAUSE_S = 0.3  # the pause between two commands of Alice [s]
# Bobby runs this script. It replaces Alice's directory by his own, if he may rename hers. The files
# in his directory have the names and sizes of Alice's copies.
PLANT = """
cd "$0" && mv monarch-$1 aside && mkdir -p monarch-$1/c && chmod 755 monarch-$1 monarch-$1/c || exit
for name in $2; do head -c $3 /dev/zero > monarch-$1/c/$name; chmod 444 monarch-$1/c/$name; done
"""
# For each line of input, prints the digests of the files that the line names.
READER = """
import hashlib, sys
for line in sys.stdin:
    print(*(hashlib.sha256(open(path, "rb").read()).hexdigest() for path in line.split()))
    sys.stdout.flush()
"""

open_place = pytest.fixture(users.open_place)


class Site:
    """Alice's session and daemon, with a tier below a directory that is writable by all users."""

    def __init__(self, session: Session, files: Files, python: str) -> None:
        self.session, self.files, self.python = session, files, python
        self.env = users.environment(session)
        self.daemon: subprocess.Popen[bytes] | None = None
        self.mount = session.tiers[0]

    def run(self, uid: int, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            as_user(uid, *command),
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def monarch(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(ALICE, self.python, *self.session.command(*words)[1:])

    def status(self) -> dict[str, Any]:
        said = self.monarch("status", "--json")
        found: dict[str, Any] = json.loads(said.stdout) if not said.returncode else {}
        return found

    def serve(self) -> None:
        command = as_user(ALICE, self.python, *self.session.command("serve")[1:])
        with self.session.log.open("ab") as log:
            self.daemon = subprocess.Popen(command, env=self.env, stdout=log, stderr=log)
        wait_until(self._has_begun, what="the daemon's start")
        wait_until(lambda: self.status().get("scanned"), what="the daemon's scan", every=PAUSE_S)

    def _has_begun(self) -> bool:
        """Returns whether the daemon's segments exist. This check is quicker than `status`, which
        starts a process of Alice."""
        assert self.daemon is not None
        assert self.daemon.poll() is None, self.session.log.read_text()
        return any(self.session.shm.glob(f"monarch-{ALICE}/*/control*"))

    def wait_given_up(self) -> None:
        wait_until(
            lambda: not self.status()["tiers"][0]["usable"],
            what="a tier that is given up",
            every=PAUSE_S,
        )

    @property
    def paths(self) -> list[str]:
        return [str(self.files.path(name)) for name in self.files.digests]

    @property
    def right(self) -> list[str]:
        return list(self.files.digests.values())

    def digests(self) -> list[str]:
        """Returns the digests of all files, as a new process of Alice's job computes them."""
        done = self.run(ALICE, *users.ours(self.session), "sha256sum", *self.paths)
        assert done.returncode == 0, done.stderr
        return [line.split()[0] for line in done.stdout.splitlines()]

    def fill(self) -> None:
        self.digests()
        wait_until(self._is_copied, what="all copies")
        assert self.status()["sources"][0]["present"] == COUNT

    def _is_copied(self) -> bool:
        """Returns whether the tier's directory has all copies. This check is quicker than `status`,
        which starts a process of Alice."""
        copies = self.mount.glob(f"monarch-{ALICE}/c/*")
        return [copy.stat().st_size for copy in copies] == [SIZE] * COUNT

    def plant(self) -> bool:
        """As Bobby, tries to replace the tier's directory. Returns whether this succeeded."""
        names = " ".join(path.name for path in (self.mount / f"monarch-{ALICE}/c").iterdir())
        words = ("sh", "-c", PLANT, str(self.mount), str(ALICE), names, str(SIZE))
        return self.run(BOBBY, *words).returncode == 0

    def end(self) -> None:
        if self.daemon is not None:
            self.daemon.send_signal(signal.SIGCONT)
            self.daemon.terminate()
            self.daemon.wait(timeout=30)
            assert "Traceback" not in self.session.log.read_text()


@pytest.fixture(scope="module")
def python() -> str:
    return users.python_for_all()


@pytest.fixture
def site(session_factory: Callable[..., Session], open_place: Path, python: str) -> Iterator[Site]:
    place, mount = open_place / "session", open_place / "local"
    place.mkdir()
    mount.mkdir()
    mount.chmod(0o1777)
    files = Files(open_place / "source").add_many(COUNT, SIZE)
    level = {"mount_point": mount, "max_storage_quota": 4 * MIB}
    session = session_factory(files.root, tiers=[level], directory=place)
    for path in (place, place / "shm"):
        os.chown(path, ALICE, ALICE)
    session.log.touch()
    made = Site(session, files, python)
    yield made
    made.end()


def test_a_mount_point_where_others_may_rename_is_refused_with_the_hint(site: Site) -> None:
    site.mount.chmod(0o777)
    why = (
        f"tier {site.mount} goes unused: {site.mount} may be written by everybody and has no sticky"
        f" bit, so that others can replace the files in it; chmod +t {site.mount}"
    )
    # The test runs `serve`, which stays in the foreground. A daemon in the background would not
    # find the Python packages of the tests.
    done = site.monarch("serve")
    assert done.returncode == 4
    assert done.stderr.endswith(f"\nmonarch: no tier can be used: {why}\n")
    found = {f["what"]: f for f in json.loads(site.monarch("doctor", "--json").stdout)}
    assert (found["tier (ssd)"]["level"], found["tier (ssd)"]["hint"]) == (
        "problem",
        f"chmod +t {site.mount}",
    )
    assert list(site.mount.iterdir()) == []
    # If Alice follows the hint, Bobby cannot replace the directory.
    site.mount.chmod(0o1777)
    site.serve()
    site.fill()
    assert not site.plant()
    assert site.digests() == site.right


def test_a_directory_made_beforehand_is_named_with_its_owner(site: Site) -> None:
    in_the_way = site.mount / f"monarch-{ALICE}"
    assert site.run(BOBBY, "mkdir", "-m", "777", in_the_way).returncode == 0
    serve, doctor = site.monarch("serve"), site.monarch("doctor", "--json")
    said = (
        f"{in_the_way} is not a directory of this user alone: it belongs to user {BOBBY}; ask user"
        f" {BOBBY} or root to remove it, or choose another mount_point"
    )
    assert serve.stderr.endswith(f": tier {site.mount}: {said}\n")
    found = next(f for f in json.loads(doctor.stdout) if f["level"] == "problem")
    assert (found["what"], found["hint"]) == ("tier (ssd)", "choose another mount_point")
    assert f"ask user {BOBBY} or root" in found["found"]
    in_the_way.rmdir()
    # `doctor` also names the owner if a directory in shared memory is in the way.
    shutil.rmtree(site.session.shm / f"monarch-{ALICE}")
    (site.session.shm / f"monarch-{ALICE}").symlink_to("/nowhere")
    os.chown(site.session.shm / f"monarch-{ALICE}", BOBBY, BOBBY, follow_symlinks=False)
    doctor = site.monarch("doctor", "--json")
    (found,) = [f for f in json.loads(doctor.stdout) if f["what"] == "shared memory"]
    assert found["level"] == "problem"
    assert f"is a link of user {BOBBY}; ask user {BOBBY} or root" in found["found"]
    assert found["hint"] == "set MONARCH_SHM to a directory of yours"
    (site.session.shm / f"monarch-{ALICE}").unlink()


def test_copies_that_are_planted_while_a_daemon_serves_are_not_read(site: Site) -> None:
    site.serve()
    site.fill()
    assert site.daemon is not None
    with subprocess.Popen(
        as_user(ALICE, *users.ours(site.session), site.python, "-c", READER),
        env=site.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:

        def read() -> list[str]:
            assert reader.stdin is not None and reader.stdout is not None
            reader.stdin.write(" ".join(site.paths) + "\n")
            reader.stdin.flush()
            return reader.stdout.readline().split()

        assert read() == site.right
        assert site.status()["totals"]["hits"] >= COUNT
        # The suspended daemon cannot notice the replacement, but a new process notices it.
        site.daemon.send_signal(signal.SIGSTOP)
        site.mount.chmod(0o777)
        assert site.plant()
        done = site.run(ALICE, *users.ours(site.session), "sha256sum", *site.paths)
        assert [line.split()[0] for line in done.stdout.splitlines()] == site.right
        planted = f"{site.mount}/monarch-{ALICE}/c/"
        assert done.stderr == (
            f"monarch: a tier's path does not lead to the daemon's private directory: {planted};"
            " all reads go to the source. Run `monarch doctor` for details.\n"
        )
        site.daemon.send_signal(signal.SIGCONT)
        site.wait_given_up()
        # The old process and a new process both read the source. The new process prints no message,
        # because the daemon has given up the tier.
        assert read() == site.right
        done = site.run(ALICE, *users.ours(site.session), "sha256sum", *site.paths)
        assert [line.split()[0] for line in done.stdout.splitlines()] == site.right
        assert done.stderr == ""
        reader.communicate()
    assert site.status()["tiers"][0]["why"] == (
        f"tier {site.mount} goes unused: its directory was removed or replaced;"
        " run `monarch stop` and `monarch start` to make it again"
    )
    # The daemon removes Alice's copies from the directory `aside`, to which Bobby has moved them.
    # It does not remove Bobby's own files in the tier's directory.
    wait_until(lambda: not list((site.mount / "aside/c").iterdir()), what="no copies left")
    site.end()
    site.daemon = None
    assert len(list((site.mount / f"monarch-{ALICE}/c").iterdir())) == COUNT


def test_a_mount_point_that_is_opened_to_all_later_is_given_up(site: Site) -> None:
    site.serve()
    site.fill()
    site.mount.chmod(0o777)
    site.wait_given_up()
    assert "has no sticky bit" in site.status()["tiers"][0]["why"]
    assert site.digests() == site.right
    shutil.rmtree(site.mount / f"monarch-{ALICE}", ignore_errors=True)
