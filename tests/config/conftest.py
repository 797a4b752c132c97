"""Directories for the tests' configurations: sources, tiers, and special cases."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_py.config import _disk
from monarch_py.config.load import load_config
from monarch_py.config.schema import Config, SourceConfig
from monarch_py.errors import ConfigError


class Site:
    """A directory with sources and tiers. In configurations, @ stands for the directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / "monarch.yaml"
        for name in ("pfs/sub", "pfs2", "ssd/sub", "ssd2"):
            (root / name).mkdir(parents=True)
        (root / "file").touch()
        (root / "link").symlink_to(root / "ssd")

    def load(self, text: str) -> Config:
        self.file.write_text(text.replace("@", str(self.root)))
        return load_config(self.file)

    def refusal(self, text: str) -> str:
        with pytest.raises(ConfigError) as caught:
            self.load(text)
        assert caught.value.exit_status == 2
        return str(caught.value)

    def check_refused(self, text: str, line: int, key: str, problem: str, hint: str) -> None:
        """Checks that a configuration is refused with the message 'FILE:LINE: key: problem; hint',
        on one line."""
        message = self.refusal(text)
        place = f"{self.file}:{line}: {key}: " if key else f"{self.file}:{line}: "
        assert message.startswith(place)
        assert "\n" not in message
        assert "see below" not in message
        what, _, remedy = message.removeprefix(place).rpartition("; ")
        assert problem in what
        assert hint in remedy

    def source(self, name: str = "pfs", **more: object) -> SourceConfig:
        path = self.root / name
        return SourceConfig(path=path, real_path=Path(os.path.realpath(path)), **more)  # type: ignore[arg-type]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def in_ram(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory on /dev/shm."""
    shm = Path("/dev/shm")
    if not shm.is_dir() or not os.access(shm, os.W_OK) or not _disk.is_in_ram(shm):
        pytest.skip("needs a writable tmpfs at /dev/shm")
    directory = shm / f"monarch-test-{os.getpid()}"
    directory.mkdir(mode=0o700)
    yield directory
    directory.rmdir()


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A directory that not even root can write to."""
    directory = tmp_path / "read-only"
    directory.mkdir(mode=0o555)
    if os.geteuid() != 0:
        yield directory
        return
    command = ["mount", "-t", "tmpfs", "-o", "ro,size=64k", "monarch-test", str(directory)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a tmpfs, or a user other than root")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)
