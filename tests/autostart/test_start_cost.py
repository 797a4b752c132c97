"""Tests how long the first open takes, and that only one daemon starts if many programs open a file
at the same time."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from autostart.started import CAT, Started
from support.draws import sized
from support.files import Files

# In at least one of ATTEMPTS attempts, an open must take at most OPEN_US, and use at most CPU_US of
# processor time [us]. The other attempts may be slower, because other processes load the machine.
OPEN_US, CPU_US, ATTEMPTS = 2000, 1000, 20


@pytest.mark.usefixtures("alone")
def test_the_first_open_waits_for_no_daemon(site: Started, files: Files, places: Path) -> None:
    """The first open does not wait until the daemon has started, even in a program with 512 MiB of
    memory in use."""
    site.learn()
    found: list[tuple[int, int]] = []
    while not any(wall <= OPEN_US and cpu <= CPU_US for wall, cpu in found):
        assert len(found) < ATTEMPTS, found
        done = site.run(places, "large", files.path("f00001"))
        wall, cpu, *rest = map(int, done.stdout.split())
        assert rest == [77, errno.ECHILD], (
            "the open has changed errno, or has left a child to wait for"
        )
        site.wait_for_starts(1)
        site.end()
        site.session.paths.forget_starts()
        found.append((wall, cpu))


# --- many at once --------------------------------------------------------------------------------

GATE = 'read -r _; exec "$0" "$1"'


def crowd(site: Started, file: Path, count: int) -> None:
    """Runs `count` processes that open the file at the same time. Checks that all of them succeed,
    and that they start only one daemon."""
    inside, gate = os.pipe()
    waiting = [
        subprocess.Popen(
            ["sh", "-c", GATE, CAT, file],
            env=site.session.env(),
            stdin=inside,
            stdout=subprocess.DEVNULL,
        )
        for _ in range(count)
    ]
    os.close(inside)
    os.close(gate)
    assert {process.wait(timeout=60) for process in waiting} == {0}
    site.daemon()
    assert site.starts() == 1


def test_of_many_that_start_at_once_one_starts_it(site: Started, files: Files) -> None:
    crowd(site, files.path("f00001"), sized(10, 16))


@pytest.mark.long
def test_64_that_start_at_once_100_times(site: Started, files: Files) -> None:
    site.learn()
    for _ in range(100):
        crowd(site, files.path("f00001"), 64)
        assert site.session.monarch("stop").returncode == 0
        assert site.is_gone()


@pytest.mark.long
def test_under_ray(site: Started, files: Files) -> None:
    pytest.importorskip("ray", reason="ray is missing: pip install ray")
    script = """
import ray, sys
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
read = ray.remote(lambda path: len(open(path, "rb").read()))
print(sum(ray.get([read.remote(sys.argv[1]) for _ in range(4)])))
"""
    site.learn()
    done = site.run(sys.executable, "-c", script, files.path("f00001"), timeout=200)
    assert done.stdout.split()[-1:] == ["12000"], done.stderr
    assert site.starts() == 1
