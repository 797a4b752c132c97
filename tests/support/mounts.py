"""Small file systems for one test: tmpfs, and ext4 and xfs in a file behind a loop device.

Leaving the context unmounts all of these file systems, even if a process still has files open on
them. If a file system cannot be created, the test is skipped with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType

import pytest

# The mkfs commands. Their options leave as much room as possible for files in a small image.
_MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-m", "0", "-J", "size=1"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
_PACKAGES = {"mkfs.ext4": "e2fsprogs", "mkfs.xfs": "xfsprogs", "mount": "mount", "umount": "mount"}


def _tool(name: str) -> str:
    # An ordinary user's PATH may lack the directories of these programs.
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"{name} is missing: install {_PACKAGES[name]}")
    return found


def _run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False
    )


class Mounts:
    """Creates mounts below `directory`; leaving the context removes all of them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mounted: list[Path] = []

    def __enter__(self) -> Mounts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        left = [point for point in reversed(self._mounted) if not self._unmount(point)]
        assert not left, f"still mounted: {left}"

    def tmpfs(
        self, name: str, size_bytes: int, *, inodes: int | None = None, huge: str = ""
    ) -> Path:
        """Mounts an empty tmpfs of this size.

        inodes : the maximum number of files and directories
        huge : the value of the mount option `huge`, which selects when huge pages are used
            (tmpfs(5))
        """
        point = self._point(name)
        options = f"size={size_bytes}" + (f",nr_inodes={inodes}" if inodes else "")
        options += f",huge={huge}" if huge else ""
        return self._mount(point, "-t", "tmpfs", "-o", options, "tmpfs")

    def ext4(
        self, name: str, size_bytes: int, *, inodes: int | None = None, is_flexible: bool = True
    ) -> Path:
        """Mounts an empty ext4 in an image of this size.

        inodes : the number of inodes
        is_flexible : whether several block groups are treated as one
        """
        options = ["-N", str(inodes)] if inodes else []
        options += [] if is_flexible else ["-O", "^flex_bg"]
        return self._image("ext4", name, size_bytes, *options)

    def xfs(self, name: str, size_bytes: int) -> Path:
        """Mounts an empty xfs in an image of this size; mkfs.xfs requires at least 300 MiB."""
        return self._image("xfs", name, size_bytes)

    def bind(self, name: str, directory: Path) -> Path:
        """Mounts the directory a second time."""
        return self._mount(self._point(name), "--bind", str(directory))

    def pin(self, file: Path) -> Path:
        """Mounts the file on itself, so that it can be neither renamed nor removed."""
        return self._mount(file, "--bind", str(file))

    def cover(self, directory: Path) -> Path:
        """Mounts an empty tmpfs over an existing directory."""
        return self._mount(directory, "-t", "tmpfs", "none")

    def detach(self, point: Path) -> None:
        """Detaches a mount immediately, although files on it are open."""
        done = _run(_tool("umount"), "--lazy", point)
        assert done.returncode == 0, done.stderr
        self._mounted.remove(point)

    def remount(self, point: Path, options: str) -> None:
        """Changes the options of a mount: 'ro', 'rw', 'size=...'."""
        done = _run(_tool("mount"), "-o", f"remount,{options}", point)
        assert done.returncode == 0, done.stderr

    def _image(self, kind: str, name: str, size_bytes: int, *more: str) -> Path:
        make, *flags = _MAKE[kind]
        tool, point = _tool(make), self._point(name)
        image = self._directory / f"{name}.{kind}"
        with image.open("wb") as file:
            file.truncate(size_bytes)
        made = _run(tool, *flags, *more, image)
        assert made.returncode == 0, made.stderr
        return self._mount(point, "-t", kind, "-o", "loop", str(image))

    def _point(self, name: str) -> Path:
        if os.geteuid() != 0:
            pytest.skip("only root may mount: run the tests as root")
        point = self._directory / name
        point.mkdir()
        return point

    def _mount(self, point: Path, *words: str) -> Path:
        done = _run(_tool("mount"), *words, point)
        if done.returncode != 0:
            pytest.skip(f"a {words[1]} cannot be mounted here: {done.stderr.strip()}")
        self._mounted.append(point)
        return point

    @staticmethod
    def _unmount(point: Path) -> bool:
        # If a file is open, the first command fails with EBUSY. The second command detaches the
        # mount nevertheless.
        return any(
            _run(_tool("umount"), *flags, point).returncode == 0 for flags in ((), ("--lazy",))
        )
