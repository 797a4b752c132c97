"""Programs in podman containers use the copies of a daemon that runs outside the container."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.files import Files
from support.podman import Podman, why_no_podman
from support.session import Session
from support.users import PACKAGE

COUNT = 12


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    if missing := why_no_podman():
        pytest.skip(missing)
    with TemporaryDirectory() as directory:
        made = Podman(Path(directory))
        if (done := made.run("true")).returncode:
            pytest.skip(f"podman runs no container here: {done.stderr.strip()}")
        yield made


@pytest.fixture
def session(session_factory: Callable[..., Session], tmp_path: Path) -> Session:
    files = Files(tmp_path / "source").add_many(COUNT, 3000)
    session = session_factory(files.root).start()
    session.wait_all_present()
    return session


def of_doctor(session: Session) -> list[str]:
    """Returns the paths that `monarch doctor` names as mounts for a container."""
    findings = json.loads(session.monarch("doctor", "--json").stdout)
    (found,) = [each["found"] for each in findings if each["what"] == "containers"]
    return str(found).partition(": ")[2].split()


def test_a_container_with_the_mounts_of_doctor(podman: Podman, session: Session) -> None:
    environment = {k: session.env()[k] for k in ("LD_PRELOAD", "MONARCH_CONFIG", "MONARCH_SHM")}
    mounts = of_doctor(session)
    read = "sh", "-c", f"cat {session.source}/* | cksum"
    expected = session.run(read, preload=False)
    before = session.totals()
    done = podman.run(*read, mounts=mounts, **environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, expected.stdout, "")
    hits = {name: session.totals()[name] - before[name] for name in ("opens", "hits")}
    assert hits == {"opens": COUNT, "hits": COUNT}

    # Without the daemon's shared memory, the program reads from the source.
    less = [place for place in mounts if place != str(session.shm)]
    done = podman.run(*read, mounts=less, **environment)
    assert (done.returncode, done.stdout) == (0, expected.stdout)
    assert done.stderr.count("\n") == 1
    assert session.totals()["opens"] == before["opens"] + COUNT


LOOK = """
import sys
from pathlib import Path
from monarch_py.util.container import container, is_of_the_image
print(container(), *(is_of_the_image(Path(path)) for path in sys.argv[1:]))
"""


def test_what_a_container_knows_of_itself(podman: Podman, tmp_path: Path) -> None:
    odd = tmp_path / "with a blank"
    odd.mkdir()
    mounts = [sys.prefix, sys.base_prefix, str(PACKAGE), str(odd)]
    paths = odd, odd / "below", tmp_path, Path("/dev/shm"), Path("/etc")
    command = sys.executable, "-B", "-c", LOOK, *paths
    done = podman.run(*command, mounts=mounts, PYTHONPATH=str(PACKAGE))
    assert done.stderr == ""
    assert done.stdout.split() == ["podman", "False", "False", "True", "False", "True"]
