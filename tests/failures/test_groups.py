"""A process runs as the owner of the copies, but lacks one of the daemon's groups. If the process
may not read a file in the source, it must not get the content from a copy."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import users
from support.draws import cases
from support.files import Files
from support.session import Session, wait_until
from support.users import ALICE, as_user

# Group IDs; PROJECT is the group of one file of the tests.
PROJECT, OTHER, MANY, THOUSANDS = 65532, 65531, range(61000, 61100), range(61000, 63000)

open_place = pytest.fixture(users.open_place)


class Site:
    """A daemon that runs as Alice in the groups `groups`, and a source with a file that only
    members of the group PROJECT may read."""

    def __init__(self, session: Session, files: Files, groups: list[int]) -> None:
        self.groups = groups
        self.session, self.env = session, users.environment(session)
        self.closed, self.open = files.path("f00000"), files.path("f00001")
        self.files = len(files.digests)

    def monarch(self, word: str) -> list[str]:
        return [users.python_for_all(), *self.session.command(word)[1:]]

    def run(self, *words: str | Path, groups: list[int]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            as_user(ALICE, *words, groups=groups),
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def read(self, path: Path, groups: list[int], *, preload: bool = True) -> tuple[int, str]:
        under = users.ours(self.session) if preload else []
        done = self.run(*under, "sha256sum", path, groups=groups)
        return done.returncode, done.stdout


@pytest.fixture
def site(
    session_factory: Callable[..., Session], open_place: Path, request: pytest.FixtureRequest
) -> Iterator[Site]:
    place, mount = open_place / "session", open_place / "local"
    groups = getattr(request, "param", [PROJECT, OTHER])
    as_user(ALICE)  # skips the test if no program can run as Alice
    for directory in (place, mount):
        directory.mkdir()
    mount.chmod(0o1777)
    files = Files(open_place / "source").add_many(2, 3000)
    shutil.chown(files.path("f00000"), 0, PROJECT)
    files.path("f00000").chmod(0o640)
    tiers = [{"mount_point": mount, "max_storage_quota": 1 << 20}]
    session = session_factory(files.root, tiers=tiers, directory=place, prefetch="eager")
    session.shm.chmod(0o777)
    here = Site(session, files, groups)
    with session.log.open("ab") as log:
        daemon = subprocess.Popen(
            as_user(ALICE, *here.monarch("serve"), groups=groups),
            env=here.env,
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(lambda: copies(here, daemon) == here.files, what="all copies")
        yield here
    finally:
        daemon.terminate()
        daemon.wait(timeout=30)


def copies(site: Site, daemon: subprocess.Popen[bytes]) -> int:
    assert daemon.poll() is None, site.session.log.read_text()
    made = list(site.session.tiers[0].glob(f"monarch-{ALICE}/c/*"))
    return len([copy for copy in made if copy.stat().st_size == 3000])


def test_a_process_without_the_group_gets_what_the_kernel_gives(site: Site) -> None:
    for groups in ([OTHER], [], [PROJECT], [PROJECT, OTHER], [PROJECT, OTHER, 61001]):
        for path in (site.closed, site.open):
            seen, plain = (site.read(path, groups, preload=under) for under in (True, False))
            assert seen == plain, (groups, path.name)
            assert (plain[0] == 0) == (path == site.open or PROJECT in groups)


def is_served(site: Site, groups: list[int]) -> bool:
    """Returns whether a process with these groups gets the copy when it opens the file."""
    script = f"exec 9<{site.closed}; unset LD_PRELOAD; readlink /proc/self/fd/9"
    done = site.run(*users.ours(site.session), "sh", "-c", script, groups=groups)
    assert done.returncode == 0, done.stderr
    return str(site.session.tiers[0]) in done.stdout


def test_who_has_all_groups_is_served(site: Site) -> None:
    assert is_served(site, [PROJECT, OTHER])
    assert is_served(site, [OTHER, 61001, PROJECT, *MANY])
    assert not is_served(site, [PROJECT])


@pytest.mark.parametrize(
    "site",
    cases([[PROJECT, *many] for many in (MANY, THOUSANDS)], [[PROJECT, *THOUSANDS]]),
    indirect=True,
)
def test_a_user_of_many_groups(site: Site) -> None:
    many = site.groups[1:]
    assert is_served(site, [PROJECT, *many])
    assert not is_served(site, [PROJECT, *many[:-1]])


LEAVES = """
import os, sys
def can_read():
    try:
        return len(open(sys.argv[1], "rb").read())
    except PermissionError:
        return None
group = int(sys.argv[2])
seen = [can_read()]
os.setgroups([])
seen.append(can_read())
os.setgroups([group])
seen.append(can_read())
os.setgroups([])
seen.append(can_read())
os.setresgid(-1, group, -1)
seen.append(can_read())
os.setegid(65534)
seen.append(can_read())
os.setegid(group)
seen.append(can_read())
os.setregid(-1, 65534)
seen.append(can_read())
os.initgroups("root", group)
seen.append(can_read())
os.initgroups("root", 65534)
seen.append(can_read())
print(seen)
"""


@pytest.mark.parametrize("site", [[PROJECT]], indirect=True)
def test_a_process_that_leaves_a_group(site: Site) -> None:
    command = as_user(ALICE, *users.ours(site.session), users.python_for_all(), "-c", LEAVES)
    command[command.index("--bounding-set=-all")] = "--bounding-set=-all,+setgid"
    command[1:1] = [f"--groups={PROJECT}", "--inh-caps=+setgid", "--ambient-caps=+setgid"]
    command.remove("--clear-groups")
    done = subprocess.run(
        [*command, str(site.closed), str(PROJECT)],
        env=site.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{[3000, None] * 5}\n"
