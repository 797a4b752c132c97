"""Configurations that do not fit the file systems are refused. The reason may be a path, a
directory or a quota, or that sources and tiers contain each other."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from monarch_py.util.units import parse_size

if TYPE_CHECKING:
    from config.conftest import Site

# The smallest configuration; @ stands for the directory of the test.
SMALLEST = """\
sources: [@/pfs]
hierarchy:
- mount_point: @/ssd
  max_storage_quota: 1MiB
"""
QUOTA = "hierarchy[0].max_storage_quota"

# (configuration, line, key, words of the problem, words of the hint)
REFUSED = {
    "quota above the disk": (
        SMALLEST.replace("1MiB", "8000000TiB"),
        4,
        QUOTA,
        "8000000 TiB is more than",
        "write at most",
    ),
    "no quota above the last level": (
        "hierarchy: [{mount_point: @/ssd}, {mount_point: @/pfs}]\n",
        1,
        QUOTA,
        "is missing",
        "add 'max_storage_quota: ...'",
    ),
    "relative path": (
        SMALLEST.replace("@/ssd", "ssd"),
        3,
        "hierarchy[0].mount_point",
        "'ssd' is not an absolute path",
        "/ssd', if you mean that",
    ),
    "path that no system has": (
        SMALLEST.replace("@/ssd", r'"/a\0"'),
        3,
        "hierarchy[0].mount_point",
        "contains a character that is not allowed in a path",
        "remove it",
    ),
    "home that no system has": (
        SMALLEST.replace("@/ssd", r'"~a\0/b"'),
        3,
        "hierarchy[0].mount_point",
        "contains a character that is not allowed in a path",
        "remove it",
    ),
    "half a character": (
        SMALLEST.replace("@/ssd", r'"/a\ud800"'),
        3,
        "hierarchy[0].mount_point",
        "contains a character that is not allowed in a path",
        "remove it",
    ),
    "undefined variable": (
        SMALLEST.replace("@/ssd", "/x/${MONARCH_TEST_UNDEFINED}"),
        3,
        "hierarchy[0].mount_point",
        "the variable MONARCH_TEST_UNDEFINED is not set",
        "export MONARCH_TEST_UNDEFINED",
    ),
    "dollar without a name": (
        SMALLEST.replace("@/ssd", "/x/${A:-b}"),
        3,
        "hierarchy[0].mount_point",
        "'$' without a name",
        "$$",
    ),
    "unknown home": (
        SMALLEST.replace("@/ssd", "~monarch-test-nobody/x"),
        3,
        "hierarchy[0].mount_point",
        "is not an absolute path",
        "beginning with '/'",
    ),
    "missing tier": (
        SMALLEST.replace("@/ssd", "@/none"),
        3,
        "hierarchy[0].mount_point",
        "No such file or directory",
        "create the directory",
    ),
    "tier that the kernel shows": (
        SMALLEST.replace("@/ssd", "/proc"),
        3,
        "hierarchy[0].mount_point",
        "'/proc' is on proc, where no copy can be written",
        "choose a directory",
    ),
    "staging area that the kernel shows": (
        SMALLEST + "staging: {max_storage_quota: 1MiB, mount_point: /proc}\n",
        5,
        "staging.mount_point",
        "'/proc' is on proc, where no copy can be written",
        "choose a directory",
    ),
    "name that is too long": (
        SMALLEST.replace("@/ssd", "@/" + "x" * 300),
        3,
        "hierarchy[0].mount_point",
        "File name too long",
        "correct the path",
    ),
    "plan whose name is too long": (
        SMALLEST + f"plan: {'x' * 300}\n",
        5,
        "plan",
        "is not a file",
        "monarch plan make",
    ),
    "switch that is always there": (
        SMALLEST + "switch_file: @/pfs\n",
        5,
        "switch_file",
        "is a directory, so Monarch would always be switched off",
        "name a file in it",
    ),
    "missing source": (
        SMALLEST.replace("@/pfs", "@/none"),
        1,
        "sources[0]",
        "No such file or directory",
        "is the file system mounted here?",
    ),
    "tier not a directory": (
        SMALLEST.replace("@/ssd", "@/file"),
        3,
        "hierarchy[0].mount_point",
        "file' is not a directory",
        "correct the path",
    ),
    "source not a directory": (
        SMALLEST.replace("@/pfs", "@/file"),
        1,
        "sources[0]",
        "file' is not a directory",
        "is the file system mounted here?",
    ),
    "two tiers on one path": (
        SMALLEST + "- mount_point: @/link\n  max_storage_quota: 1\n",
        5,
        "hierarchy[1].mount_point",
        "is already a tier, in line 3",
        "merge the two",
    ),
    "tier is the source": (
        SMALLEST.replace("@/ssd", "@/pfs"),
        3,
        "hierarchy[0].mount_point",
        "is already a source, in line 1",
        "neither contains the source nor lies in it",
    ),
    "tier inside a source": (
        SMALLEST.replace("@/ssd", "@/pfs/sub"),
        3,
        "hierarchy[0].mount_point",
        "a source in line 1",
        "neither contains the source nor lies in it",
    ),
    "source inside a tier": (
        SMALLEST.replace("@/pfs", "@/link/sub"),
        1,
        "sources[0]",
        "a tier in line 3",
        "neither contains the source nor lies in it",
    ),
    "source inside a source": (
        SMALLEST.replace("@/pfs", "@/pfs, @/pfs/sub"),
        1,
        "sources[1]",
        "a source in line 1",
        "keep the outer one",
    ),
    "source around a source": (
        SMALLEST.replace("@/pfs", "@/pfs/sub, @/pfs"),
        1,
        "sources[0]",
        "a source in line 1",
        "keep the outer one",
    ),
    "two same sources": (
        SMALLEST.replace("@/pfs", "@/pfs, @/pfs/"),
        1,
        "sources[1]",
        "is already a source",
        "remove one",
    ),
}


@pytest.mark.parametrize(
    ("text", "line", "key", "problem", "hint"), REFUSED.values(), ids=list(REFUSED)
)
def test_refused_with_file_line_key_and_hint(
    site: Site, text: str, line: int, key: str, problem: str, hint: str
) -> None:
    site.check_refused(text, line, key, problem, hint)


def test_a_file_system_that_does_not_answer_is_named(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> os.statvfs_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "statvfs", fails)
    message = site.refusal(SMALLEST)
    assert "mount_point: the size of the file system of" in message
    assert message.endswith("cannot be read (Input/output error); check that it is mounted")


def test_a_quota_may_be_the_whole_disk_but_no_more(site: Site) -> None:
    capacity = os.statvfs(site.root).f_blocks * os.statvfs(site.root).f_frsize
    assert site.load(SMALLEST.replace("1MiB", str(capacity))).tiers[0].quota_bytes == capacity
    message = site.refusal(SMALLEST.replace("1MiB", str(capacity + 1)))
    assert message.startswith(f"{site.file}:4: hierarchy[0].max_storage_quota: ")
    # The hint names a size as people write it: a whole number of units.
    at_most = message.rpartition("; write at most ")[2]
    assert capacity * 0.9 < parse_size(at_most) <= capacity
    assert at_most.endswith("iB")


def test_a_tier_that_cannot_be_written_to_is_refused(site: Site, read_only: Path) -> None:
    message = site.refusal(SMALLEST.replace("@/ssd", str(read_only)))
    assert message == (
        f"{site.file}:3: hierarchy[0].mount_point: '{read_only}' cannot be written to;"
        " give yourself the permission or choose another directory"
    )


def test_nobody_is_told_to_make_a_source_writable(site: Site, read_only: Path) -> None:
    text = SMALLEST.replace("@/pfs", str(read_only)).replace("@/ssd", str(read_only))
    assert f"'{read_only}' is already a source, in line 1; choose" in site.refusal(text)


def test_the_same_directory_behind_a_bind_mount_is_found(site: Site) -> None:
    bound = site.root / "bound"
    bound.mkdir()
    command = ["mount", "--bind", str(site.root / "pfs"), str(bound)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs root and the right to make bind mounts")
    try:
        message = site.refusal(SMALLEST.replace("@/ssd", "@/bound/sub"))
    finally:
        subprocess.run(["umount", str(bound)], check=True)
    assert f"'{bound}/sub' is inside '{site.root}/pfs', a source in line 1; " in message


def test_a_tier_path_that_is_too_long_is_refused(site: Site) -> None:
    # The limit is on bytes, not on characters: é has two bytes.
    fits = site.root / ("é" * 20) / "x"
    fits /= "y" * (180 - len(os.fsencode(fits)) - 1)
    fits.mkdir(parents=True)
    assert site.load(SMALLEST.replace("@/ssd", str(fits))).tiers[0].mount_point == fits
    long = Path(f"{fits}z")
    long.mkdir()
    message = site.refusal(SMALLEST.replace("@/ssd", str(long)))
    assert message == (
        f"{site.file}:3: hierarchy[0].mount_point: the path is 181 bytes long;"
        " choose one of at most 180"
    )


def test_a_switch_file_that_is_too_long_is_refused(site: Site) -> None:
    fits = "/" + "x" * 238
    assert site.load(f"{SMALLEST}switch_file: {fits}\n").switch_file == Path(fits)
    for n_bytes in (240, 1200):
        message = site.refusal(f"{SMALLEST}switch_file: /{'x' * (n_bytes - 1)}\n")
        assert message == (
            f"{site.file}:5: switch_file: the path is {n_bytes} bytes long; choose one of at"
            " most 239"
        )


@pytest.mark.parametrize("by_link", [False, True])
def test_a_source_path_that_is_too_long_is_refused(site: Site, by_link: bool) -> None:
    def directory(n_bytes: int) -> Path:
        path, part = site.root / f"long{n_bytes}", "/" + "d" * 199
        while len(os.fsencode(path)) + 220 < n_bytes:
            path = Path(f"{path}{part}")
        path /= "e" * (n_bytes - len(os.fsencode(path)) - 1)
        path.mkdir(parents=True)
        return path

    assert site.load(SMALLEST.replace("@/pfs", str(directory(1023))))
    long = directory(1024)
    if by_link:
        (site.root / "short").symlink_to(long)
    message = site.refusal(SMALLEST.replace("@/pfs", "@/short" if by_link else str(long)))
    assert message.endswith("the path is 1024 bytes long; choose one of at most 1023")


# --- the staging area ---------------------------------------------------------------------------

TIERS = "sources: [@/pfs]\nhierarchy:\n- {mount_point: @/ssd, max_storage_quota: 1MiB}\n"


def test_the_staging_area_may_lie_where_a_tier_lies(site: Site) -> None:
    config = site.load(TIERS + "staging: {mount_point: @/ssd, max_storage_quota: 2MiB}\n")
    assert config.staging is not None
    assert (config.staging.mount_point, config.staging.quota_bytes) == (site.root / "ssd", 2 << 20)
    assert not config.staging.persistent


@pytest.mark.parametrize(
    ("staging", "key", "problem", "hint"),
    [
        ("{mount_point: @/ssd2}", "max_storage_quota", "is missing", "add"),
        ("{mount_point: @/not, max_storage_quota: 1MiB}", "mount_point", "cannot be", "create"),
        (
            "{mount_point: @/pfs/sub, max_storage_quota: 1MiB}",
            "mount_point",
            "inside",
            "neither contains",
        ),
        (
            "{mount_point: @/pfs, max_storage_quota: 1MiB}",
            "mount_point",
            "a source",
            "neither contains",
        ),
        ("{mount_point: @/ssd, max_storage_quota: 0}", "max_storage_quota", "no room", "a size"),
        ("{mount_point: @/ssd, max_storage_quota: 999TiB}", "max_storage_quota", "more", "at most"),
    ],
)
def test_a_staging_area_that_cannot_work(
    site: Site, staging: str, key: str, problem: str, hint: str
) -> None:
    site.check_refused(f"{TIERS}staging: {staging}\n", 4, f"staging.{key}", problem, hint)


def test_the_staging_area_needs_a_number(site: Site) -> None:
    for number in range(16):
        (site.root / f"t{number}").mkdir()
    levels = "".join(
        f"- {{mount_point: @/t{number}, max_storage_quota: 1MiB}}\n" for number in range(16)
    )
    text = f"sources: [@/pfs]\nhierarchy:\n{levels}staging: {{max_storage_quota: 1MiB}}\n"
    site.check_refused(text, 19, "staging", "16 tiers", "at most 15")
