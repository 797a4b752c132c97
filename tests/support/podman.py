"""Runs containers with podman, in a storage directory of the test's own.

The image is empty except for links into /usr, which each container mounts from the host.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Podman", "why_no_podman"]

IMAGE = "localhost/empty"
# Settings that work where no limit may be raised and neither a registry nor the network is
# reachable.
ENGINE = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
netns = "none"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
"""
STORAGE = """\
[storage]
driver = "vfs"
graphroot = "{directory}/images"
runroot = "{directory}/run"
"""


def why_no_podman() -> str | None:
    """Returns a sentence that says what is missing on this machine, or None if containers may
    work."""
    if os.geteuid() != 0:
        return "containers are tried by root alone"
    for name in ("podman", "runc"):
        if shutil.which(name) is None:
            return f"{name} is missing: install {name}"
    return None


class Podman:
    """Podman with its own storage and configuration.

    directory : for images and configuration. Its path must be short: if the path of a socket were
        too long, podman would wait 20 s for each container's end
    """

    def __init__(self, directory: Path) -> None:
        self._env = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "MONARCH_"))}
        for name, text in (("CONTAINERS_CONF", ENGINE), ("CONTAINERS_STORAGE_CONF", STORAGE)):
            file = directory / name.lower()
            file.write_text(text.format(directory=directory))
            self._env[name] = str(file)
        done = self._podman("import", "-", IMAGE, given=_empty_root())
        assert done.returncode == 0, done.stderr

    def run(
        self, *command: str | Path, mounts: Sequence[Path | str] = (), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in a new container.

        mounts : paths of the host that the container sees at the same paths
        """
        words = ["run", "--rm", "--volume=/usr:/usr:ro"]
        words += [f"--volume={place}:{place}" for place in mounts]
        words += [f"--env={name}={value}" for name, value in environment.items()]
        return self._podman(*words, IMAGE, *map(str, command))

    def _podman(self, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["podman", *words],
            input=given,
            env=self._env,
            capture_output=True,
            timeout=60,
            check=False,
        )
        said = done.stdout.decode(), done.stderr.decode()
        return subprocess.CompletedProcess(done.args, done.returncode, *said)


def _empty_root() -> bytes:
    with io.BytesIO() as made:
        with tarfile.open(fileobj=made, mode="w") as tar:
            for name in ("bin", "lib", "lib64", "sbin"):
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
                tar.addfile(link)
        return made.getvalue()
