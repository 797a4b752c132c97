"""Tests which configurations can be read. These include all examples in the documentation."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from monarch_py.commands.calibrate import Calibration, scenario_text
from monarch_py.config import _disk, limits
from monarch_py.config.load import load_config
from monarch_py.config.performance import Performance
from monarch_py.config.schema import Config, PeersConfig, SourceConfig, TierConfig

if TYPE_CHECKING:
    from config.conftest import Site

MIB = 1 << 20
ROOT = Path(__file__).parents[2]

# The smallest configuration; @ stands for the directory of the test.
SMALLEST = """\
sources: [@/pfs]
hierarchy:
- mount_point: @/ssd
  max_storage_quota: 1MiB
"""


@pytest.mark.parametrize("text", ["0.25", "25%", "'0.25'", "25 %"])
def test_a_share_is_a_number_or_a_percentage(site: Site, text: str) -> None:
    assert site.load(f"{SMALLEST}tuning:\n  fill_after: {text}\n").fill_after == 0.25


def test_the_smallest_configuration_has_the_documented_defaults(site: Site) -> None:
    config = site.load(SMALLEST)
    assert config == Config(
        file=site.file,
        files=(site.file,),
        sources=(site.source(),),
        tiers=(TierConfig(mount_point=site.root / "ssd", quota_bytes=MIB, kind=disk_kind(site)),),
        block_size_bytes=4 * MIB,
        copy_threads=64,
        min_reads=4,
        scan_threads=16,
        scan_ops_per_s=None,
        placement="first_fit",
        switch_file=None,
        warnings=(),
    )
    assert config.sources[0] == SourceConfig(
        site.root / "pfs", site.root / "pfs", (), (), min_size_bytes=0, max_size_bytes=None
    )


def disk_kind(site: Site) -> str:
    """Returns the type of a tier in the tests' directory, which is on a tmpfs on some machines."""
    return "ram" if _disk.is_in_ram(site.root) else "ssd"


def test_every_key_is_read(site: Site) -> None:
    (site.root / "mine.yaml").write_text(
        "name: x\nrates: {compute: 1GB/s, network: 2GB/s}\npfs: {2: 100MB/s, 4: 150MB/s}\n"
    )
    config = site.load("""\
version: 1
sources:
- path: @/pfs
  include: ['*.tar', 'train/**']
  exclude: ["*.tmp"]
  min_size: 4KiB
  max_size: 1TiB
- @/pfs2
hierarchy:
- mount_point: @/ssd
  max_storage_quota: 2MiB
  type: ram
  persistent: true
  block_size: 1MiB
  eviction: planned
- {mount_point: @/ssd2, max_storage_quota: 1000 KB, type: ssd, persistent: off, block_size: max}
block_size: 128KiB
shared_tpool_size: 6
scan_rate: 5000
tuning:
  scan_threads: 256
  placement: first_fit
switch_file: @/not/there
peers: {interface: ib0, port: 7000, fetch: holders}
performance: mine.yaml
""")
    first = site.source(
        include=("*.tar", "train/**"),
        exclude=("*.tmp",),
        min_size_bytes=4096,
        max_size_bytes=2**40,
    )
    assert config.sources == (first, site.source("pfs2"))
    assert config.tiers == (
        TierConfig(site.root / "ssd", 2 * MIB, "ram", True, eviction="planned"),
        TierConfig(site.root / "ssd2", 10**6, "ssd", persistent=False),
    )
    assert (config.block_size_bytes, config.copy_threads) == (128 * 1024, 6)
    assert (config.scan_threads, config.scan_ops_per_s) == (256, 5000)
    assert (config.placement, config.switch_file) == ("first_fit", site.root / "not/there")
    assert config.peers == PeersConfig(interface="ib0", address=None, port=7000, fetch="holders")
    assert config.performance == Performance(source=50e6, link=2e9)


@pytest.mark.parametrize("address", ["10.0.0.5", "fd00::5", "127.0.0.1"])
def test_peers_have_an_address_in_numbers(site: Site, address: str) -> None:
    config = site.load(SMALLEST + f"peers: {{address: '{address}'}}\n")
    assert config.peers == PeersConfig(address=address)


def test_the_listing_of_the_original_is_read(site: Site) -> None:
    """A configuration with the keys and the structure of Listing 1 in Dantas 2022 can be loaded.
    The last level of its hierarchy is the dataset."""
    config = site.load("""\
hierarchy:
- type: file_system
  block_size: "131072"
  max_storage_quota: "1048576"
  mount_point: @/ssd
- type: file_system
  mount_point: @/pfs
shared_tpool_size: "6"
""")
    assert config.sources == (site.source(),)
    assert config.tiers == (TierConfig(site.root / "ssd", MIB, disk_kind(site)),)
    assert (config.block_size_bytes, config.copy_threads) == (4 * MIB, 6)
    # In Listing 1, the block size is the size of reads. In Monarch, a copy is divided into blocks,
    # each with a checksum of its own. All tiers have the same block size.
    (warning,) = config.warnings
    assert warning.startswith(f"{site.file}:3: hierarchy[0].block_size: ignored: ")
    assert warning.endswith("write block_size at the top")


def test_a_file_of_the_original_code_is_read_with_warnings(site: Site) -> None:
    config = site.load("""\
---
data_plane:
  type: "root_standalone"
  type_configs:
    control_policy: "solo_placement"
  shared_tpool_size: "6"
  has_shareable_file_descriptors: "true"
  profiler: {active: "true"}
  hierarchy:
    - type: "file_system"
      block_size: "max"
      max_storage_size: "1048576"
      prefix: "@/ssd"
      tpool_size: "2"
    - type: "file_system"
      block_size: "131072"
      persistent: "true"
      prefix: "@/pfs"
metadata_container:
  regex: "train-.*"
home_dir: "@/nowhere"
debug: "false"
profiler:
  active: "true"
""")
    assert config.sources == (site.source(),)
    assert config.tiers == (TierConfig(site.root / "ssd", MIB, disk_kind(site)),)
    assert (config.block_size_bytes, config.copy_threads) == (4 * MIB, 6)
    warned = [re.escape(f"{site.file}:") + r"\d+: " + rest for rest in EXPECTED_WARNINGS]
    assert len(config.warnings) == len(warned)
    for warning in config.warnings:
        assert any(re.match(pattern, warning) for pattern in warned), warning


EXPECTED_WARNINGS = [
    r"data_plane\.type: ignored",
    r"data_plane\.type_configs: ignored",
    r"data_plane\.has_shareable_file_descriptors: ignored",
    r"data_plane\.profiler: ignored",
    r"data_plane\.hierarchy\[0\]\.tpool_size: ignored: .*shared_tpool_size",
    r"data_plane\.hierarchy\[1\]\.block_size: ignored",
    r"data_plane\.hierarchy\[1\]\.persistent: ignored",
    "metadata_container: ignored: .*'include'",
    "home_dir: ignored",
    "debug: ignored",
    "profiler: ignored",
]


def test_settings_may_be_shared_between_the_top_and_data_plane(site: Site) -> None:
    nested = SMALLEST.replace("\n", "\n  ").strip()
    config = site.load(f"scan_rate: 2\ndata_plane:\n  {nested}\n")
    assert (config.scan_ops_per_s, config.sources) == (2, (site.source(),))


@pytest.mark.parametrize("quoted", ["@/ssd", "'@/ssd'", "@//ssd/./", "@/pfs/../ssd"])
def test_paths_are_normal(site: Site, quoted: str) -> None:
    config = site.load(SMALLEST.replace("@/ssd", quoted))
    assert config.tiers[0].mount_point == site.root / "ssd"


def test_a_source_keeps_its_name_beside_its_real_path(site: Site) -> None:
    (site.root / "data").symlink_to(site.root / "pfs")
    [source] = site.load(SMALLEST.replace("@/pfs", "@/data")).sources
    assert (source.path, source.real_path) == (site.root / "data", site.root / "pfs")


@pytest.mark.parametrize("written", ["$JOB/ssd", "${JOB}/ssd", "~/ssd", "${JOB}/$ssd_$$$NAME"])
def test_variables_and_home_are_expanded(
    site: Site, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    for name, value in {"JOB": site.root, "HOME": site.root, "ssd_": "s", "NAME": "sd"}.items():
        monkeypatch.setenv(name, str(value))
    (site.root / "s$sd").mkdir()
    config = site.load(SMALLEST.replace("@/ssd", written))
    assert config.tiers[0].mount_point == site.root / ("ssd" if "/ssd" in written else "s$sd")


@pytest.mark.parametrize(("written", "n_bytes"), [("64KiB", 2**16), ("1GiB", 2**30)])
def test_the_bounds_of_block_sizes_are_allowed(site: Site, written: str, n_bytes: int) -> None:
    config = site.load(SMALLEST + f"  block_size: {written}\nblock_size: {written}\n")
    assert config.block_size_bytes == n_bytes


def test_the_block_size_max_is_the_default(site: Site) -> None:
    assert site.load(SMALLEST + "block_size: max\n") == site.load(SMALLEST)


def test_the_bounds_of_file_sizes_may_be_equal(site: Site) -> None:
    config = site.load(SMALLEST.replace("[@/pfs]", "[{path: @/pfs, min_size: 9, max_size: 9}]"))
    assert config.sources == (site.source(min_size_bytes=9, max_size_bytes=9),)


def test_an_empty_variable_is_as_good_as_none(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOB", "")
    assert "the variable JOB is not set" in site.refusal(SMALLEST.replace("@/ssd", "@/$JOB"))


def test_user_is_the_accounts_name_where_nobody_sets_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If USER is not set in the environment, as in a container or under cron, $USER stands for the
    account's name."""
    name = pwd.getpwuid(os.geteuid()).pw_name
    (site.root / name).mkdir()
    text = SMALLEST.replace("@/ssd", "@/$USER")
    for unset in ("", None):
        monkeypatch.delenv("USER", raising=False)
        if unset is not None:
            monkeypatch.setenv("USER", unset)
        assert site.load(text).tiers[0].mount_point == site.root / name
    monkeypatch.setattr(os, "geteuid", lambda: 4242424)
    assert "the variable USER is not set" in site.refusal(text)


def test_a_tilde_out_of_a_variable_is_a_character(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD", "~")
    assert "'$ODD/x' is not an absolute path" in site.refusal(SMALLEST.replace("@/ssd", "$ODD/x"))


def test_the_name_of_the_file_becomes_absolute(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.load(SMALLEST)
    monkeypatch.chdir(site.root)
    assert load_config("monarch.yaml").file == site.file


# Tests of settings that load_config compares with the file system.


def test_file_system_on_tmpfs_is_ram(site: Site, in_ram: Path) -> None:
    [tier] = site.load(SMALLEST.replace("@/ssd", str(in_ram))).tiers
    assert tier.kind == "ram"


def test_persistent_copies_in_memory_are_warned_of(site: Site, in_ram: Path) -> None:
    text = SMALLEST.replace("@/ssd", str(in_ram)) + "  type: ram\n  persistent: true\n"
    config = site.load(text)
    assert config.tiers[0].persistent
    [warning] = config.warnings
    assert warning.startswith(f"{site.file}:6: hierarchy[0].persistent: ")
    assert "not a restart of the node" in warning


@pytest.mark.parametrize(
    ("kind", "truth", "words"),
    [("ram", False, "not a file system in memory"), ("ssd", True, "is in memory")],
)
def test_a_type_that_the_disk_contradicts_is_kept_and_warned_of(
    site: Site, monkeypatch: pytest.MonkeyPatch, kind: str, truth: bool, words: str
) -> None:
    monkeypatch.setattr(_disk, "is_in_ram", lambda _: truth)
    config = site.load(SMALLEST + f"  type: {kind}\n")
    assert config.tiers[0].kind == kind
    [warning] = config.warnings
    assert words in warning


@pytest.mark.parametrize(("quota", "warned"), [(1, True), (4095, True), (4096, False)])
def test_a_quota_below_one_block_is_warned_of(
    site: Site, monkeypatch: pytest.MonkeyPatch, quota: int, warned: bool
) -> None:
    monkeypatch.setattr(_disk, "block_bytes", lambda _: 4096)
    config = site.load(
        f"sources: [@/pfs]\nhierarchy:\n- mount_point: @/ssd\n  max_storage_quota: {quota}\n"
    )
    assert len(config.warnings) == warned
    for warning in config.warnings:
        assert warning.startswith(f"{site.file}:4: hierarchy[0].max_storage_quota: ")
        assert "is too small for any copy, because a copy takes at least 4 KiB" in warning


def test_a_file_system_without_a_bound_takes_any_quota(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_disk, "capacity_bytes", lambda _: None)
    assert site.load(SMALLEST.replace("1MiB", "9000TiB")).tiers[0].quota_bytes == 9000 * 2**40


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# The section that shows every key. test_reference.py tests its examples.
EVERY_KEY = re.compile(r"^## Every key, by example$.*?(?=^## )", re.DOTALL | re.MULTILINE)
# Required keys, which are added to an example that leaves them out.
NEEDED = {
    "sources": "sources: [/pfs/imagenet]\n",
    "hierarchy": "hierarchy: [{mount_point: /local/me, max_storage_quota: 1GiB}]\n",
}


def examples() -> list[str]:
    """Returns the configurations in all pages. An example that is only a part of a configuration is
    completed."""
    found = []
    for page in PAGES:
        others = EVERY_KEY.sub("", page.read_text())
        for text in re.findall(r"```yaml\n(.*?)```", others, re.DOTALL):
            if re.search(r"^( *hierarchy|staging|peers|source_limits|plan):", text, re.M):
                of_original = "prefix:" in text or "block_size: max" in text
                missing = [] if of_original else [k for k in NEEDED if f"\n{k}:" not in f"\n{text}"]
                found.append(text + "".join(NEEDED[name] for name in missing))
    return found


EXAMPLES = examples()


def test_all_examples_are_found() -> None:
    """`examples` finds at least nine examples, and one of them has a staging area."""
    assert len(EXAMPLES) >= 9
    assert sum("staging:" in example for example in EXAMPLES) >= 1


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_the_documentation_work(
    site: Site, monkeypatch: pytest.MonkeyPatch, example: str
) -> None:
    monkeypatch.setattr(_disk, "capacity_bytes", lambda _: None)
    monkeypatch.setenv("USER", "me")
    here = re.sub(r"(?<![\w@$}*])/(pfs|dev/shm|local|etc)\b", r"@/\1", example)
    for path in re.findall(r"@(/[\w$/-]+)", here):
        (site.root / path[1:].replace("$USER", "me")).mkdir(parents=True, exist_ok=True)
    (site.root / "plan.yaml").touch()
    # An example with `limits` is a site's configuration. Its limits are for different disks, but
    # here all its paths are on one disk. So let each path count as a disk of its own.
    if "\nlimits:" in here:
        monkeypatch.setattr(limits, "_device", hash)
        monkeypatch.setenv("MONARCH_SITE_CONFIG", str(site.file))
        monkeypatch.setenv("MONARCH_SOURCE", str(site.root / "pfs"))
    config = site.load(here)
    assert config.sources
    assert config.tiers


def test_a_staging_area_is_in_shared_memory_by_default(site: Site) -> None:
    staging = site.load(SMALLEST + "staging: {max_storage_quota: 1MiB}\n").staging
    assert staging == TierConfig(Path("/dev/shm"), MIB, "ram")


def test_a_source_by_itself_is_a_list_of_one(site: Site) -> None:
    alone = site.load(SMALLEST.replace("[@/pfs]", "@/pfs"))
    assert alone.sources == site.load(SMALLEST).sources


def test_the_daemon_does_not_pay_for_what_it_does_not_need() -> None:
    # `decimal` is heavy too, but msgspec imports it in any case.
    heavy = {"pydantic", "numpy", "asyncio", "difflib", "ctypes", "subprocess"}
    code = f"import monarch_py.config.load, sys; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_calibration_that_is_not_there_is_refused_where_it_is_named(site: Site) -> None:
    said = site.refusal(SMALLEST + "performance: mine.yaml\n")
    line = SMALLEST.count("\n") + 1
    assert re.search(rf":{line}: performance: '.*/mine.yaml' is not a file; make it with", said)


PACKED = SMALLEST.replace("[@/pfs]", "[{path: @/pfs, pack: @/train.tar}]")


def test_a_pack_and_its_index_have_to_be_there(site: Site) -> None:
    pack = site.root / "train.tar"
    site.check_refused(PACKED, 1, "sources[0].pack", "is not a file", "make it with `monarch pack")
    pack.touch()
    site.check_refused(PACKED, 1, "sources[0].pack", "has no index: ", "--index-only`")
    pack.with_name("train.tar.monarch").touch()
    assert site.load(PACKED).sources == (site.source(pack=pack),)


def test_a_pack_is_not_looked_at_where_sources_are_not(site: Site) -> None:
    site.file.write_text(PACKED.replace("@", str(site.root)))
    config = load_config(site.file, with_sources=False)
    assert config.sources[0].pack == site.root / "train.tar"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x\n", r"mine.yaml:1: pfs: is missing; add .*`monarch calibrate -o` writes it"),
        ("- a\n", r"mine.yaml:1: cannot be a list; write .* pfs, rates"),
        (
            "pfs: {}\nrates: {network: 1GB/s}\n",
            r"mine.yaml:1: pfs: cannot be an empty mapping; write {1: 330MiB/s,",
        ),
        (
            "pfs: {0: 1GB/s}\nrates: {network: 1GB/s}\n",
            r"mine.yaml:1: pfs.0: 0 is out of range; ",
        ),
        ("pfs: {1: 1GB/s}\nrates: {}\n", r"mine.yaml:2: rates.network: is missing; add"),
        ("pfs: {1: fast}\nrates: {network: 1GB/s}\n", r"mine.yaml:1: pfs.1: .*fast"),
    ],
)
def test_a_calibration_that_is_none_is_refused(site: Site, text: str, said: str) -> None:
    (site.root / "mine.yaml").write_text(text)
    assert re.search(said, site.refusal(SMALLEST + "performance: mine.yaml\n"))


def test_what_calibrate_writes_is_read(site: Site) -> None:
    measured = Calibration({1: 1e6, 4: 3 * MIB}, ({1: 1e9},), ({1: 1e9},), 1 << 30)
    (site.root / "mine.yaml").write_text(scenario_text(site.load(SMALLEST), measured))
    config = site.load(SMALLEST + "performance: mine.yaml\n")
    assert config.performance == Performance(source=3 * MIB, link=1 << 30)
