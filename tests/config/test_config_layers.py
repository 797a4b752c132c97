"""Tests which value of a key counts if the key is set in several places: the site's file, the
user's file, the environment and the command line."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import yaml
from cli.conftest import Monarch
from config.conftest import Site
from support.mounts import Mounts

from monarch_py.config.layers import read_layers, read_user_file, site_file
from monarch_py.config.load import load_config
from monarch_py.config.shown import as_yaml, values
from monarch_py.errors import ConfigError

TIER = "hierarchy:\n- mount_point: @/ssd\n  max_storage_quota: 1MiB\n"
LEVEL = "hierarchy:\n- mount_point: @/ssd2\n  max_storage_quota: {}\n"


class Layered(Site):
    """A directory with two configurations: the site's file and the user's file."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.site = root / "site.yaml"
        self.below(TIER)

    def below(self, text: str) -> None:
        self.site.write_text(text.replace("@", str(self.root)))

    def shown(self, user: str, *sources: Path) -> dict[str, tuple[str, str, str]]:
        self.file.write_text(user.replace("@", str(self.root)))
        found = values(read_layers(self.file, sources))
        return {each.key: (each.value, each.layer, each.place) for each in found}


@pytest.fixture
def layered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layered:
    found = Layered(tmp_path)
    monkeypatch.setenv("MONARCH_SITE_CONFIG", str(found.site))
    monkeypatch.delenv("MONARCH_SOURCE", raising=False)
    return found


def test_a_user_adds_the_datasets_path_alone(layered: Layered) -> None:
    config = layered.load("sources: [@/pfs]\n")
    assert [source.path for source in config.sources] == [layered.root / "pfs"]
    assert [tier.mount_point for tier in config.tiers] == [layered.root / "ssd"]
    assert config.file == layered.site  # with the site's tiers, a user shares the site's session
    assert config.files == (layered.site, layered.file)


def test_tiers_of_the_users_own_are_a_session_of_its_own(layered: Layered) -> None:
    config = layered.load("sources: [@/pfs]\n" + LEVEL.format("2MiB"))
    assert [tier.mount_point for tier in config.tiers] == [layered.root / "ssd2"]
    assert config.file == layered.file


def test_the_variable_is_enough(layered: Layered, monkeypatch: pytest.MonkeyPatch) -> None:
    root = layered.root
    monkeypatch.setenv("MONARCH_SOURCE", f"{root}/pfs:{root}/pfs2")
    config = load_config(layered.site)
    assert [source.path for source in config.sources] == [root / "pfs", root / "pfs2"]


def test_each_layer_goes_before_the_one_below(
    layered: Layered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each key, the value comes from the highest layer that has the key, and `config show`
    names the place of that value."""
    layered.below(
        TIER + "sources: [@/pfs]\nscan_rate: 10\nsource_limits: {operations: 5, bandwidth: 1MiB}\n"
        "tuning:\n  min_reads: 6\n"
    )
    shown = layered.shown("scan: lazy\nsource_limits:\n  operations: 3\n")
    site, user = layered.site, layered.file
    assert shown["prefetch"] == ("auto", "default", "")
    assert shown["sources[0].path"] == (f"{layered.root}/pfs", "site", f"{site}:4")
    assert shown["scan_rate"] == ("10", "site", f"{site}:5")
    assert shown["tuning.min_reads"] == ("6", "site", f"{site}:8")
    assert shown["scan"] == ("lazy", "user", f"{user}:1")
    assert shown["source_limits.operations"] == ("3", "user", f"{user}:3")
    assert shown["source_limits.bandwidth"] == ("1MiB", "site", f"{site}:6")
    monkeypatch.setenv("MONARCH_SOURCE", f"{layered.root}/pfs2")
    place = (f"{layered.root}/pfs2", "environment", "MONARCH_SOURCE")
    assert layered.shown("scan: lazy\n")["sources[0].path"] == place
    place = (f"{layered.root}/ssd", "command line", "--source")
    assert layered.shown("scan: lazy\n", layered.root / "ssd")["sources[0].path"] == place


def test_a_named_dataset_keeps_what_a_file_says_of_it(
    layered: Layered, monkeypatch: pytest.MonkeyPatch
) -> None:
    layered.below(TIER + "sources:\n- @/pfs2\n- path: @/pfs\n  exclude: ['*.tmp']\n")
    monkeypatch.setenv("MONARCH_SOURCE", f"{layered.root}/pfs")
    (source,) = load_config(layered.site).sources
    assert (source.path, source.exclude) == (layered.root / "pfs", ("*.tmp",))
    shown = layered.shown("scan: lazy\n")
    assert shown["sources[0].path"][1:] == ("environment", "MONARCH_SOURCE")
    assert shown["sources[0].exclude[0]"][1:] == ("site", f"{layered.site}:7")


def test_an_error_names_the_file_that_has_it(
    layered: Layered, monkeypatch: pytest.MonkeyPatch
) -> None:
    layered.below("hierarchy:\n- mount_point: @/none\n  max_storage_quota: 1MiB\n")
    said = layered.refusal("sources: [@/pfs]\n")
    assert said.startswith(f"{layered.site}:2: hierarchy[0].mount_point: '{layered.root}/none' ")
    layered.below(TIER)
    monkeypatch.setenv("MONARCH_SOURCE", "data")
    said = layered.refusal("scan: lazy\n")
    assert said.startswith("MONARCH_SOURCE: sources[0]: 'data' is not an absolute path; ")
    monkeypatch.setenv("MONARCH_SOURCE", f"{layered.root}/ssd")
    assert " is already a source, in MONARCH_SOURCE; " in layered.refusal("scan: lazy\n")


def test_a_user_who_cannot_write_the_sites_file_is_told_whom_to_ask(
    layered: Layered, monkeypatch: pytest.MonkeyPatch
) -> None:
    layered.below("hierarchy:\n- mount_point: @/none\n  max_storage_quota: 1MiB\n")
    ask = ", or ask your site's administrator"
    assert ask not in layered.refusal("sources: [@/pfs]\n")  # this user may write the site's file
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK or path != layered.site)
    said = layered.refusal("sources: [@/pfs]\n")
    assert said.endswith(f"; create the directory or correct the path{ask}")
    layered.below(TIER)
    assert ask not in layered.refusal("sources: [@/none]\n")


def test_without_a_dataset_the_variable_is_named(layered: Layered) -> None:
    with pytest.raises(ConfigError, match="set MONARCH_SOURCE=/the/dataset, or give --source"):
        load_config(layered.site)
    assert load_config(layered.site, with_sources=False).sources == ()


def test_where_the_sites_file_is_found(
    layered: Layered, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert site_file() == layered.site
    monkeypatch.setenv("MONARCH_SITE_CONFIG", "")
    assert site_file() is None
    monkeypatch.delenv("MONARCH_SITE_CONFIG")
    monkeypatch.setattr("monarch_py.config.layers.installation", lambda: tmp_path)
    assert site_file() is None
    beside = tmp_path / "etc" / "monarch" / "site.yaml"
    beside.parent.mkdir(parents=True)
    beside.touch()
    assert site_file() == beside


# --- limits --------------------------------------------------------------------------------------

LIMITS = (
    TIER + "limits:\n  max_storage_quota: {@: 3MiB}\n  shared_tpool_size: 8\n  scan_rate: 100\n"
    "  bandwidth: 10MiB\n  operations: 50\n"
)


def test_limits_are_the_values_of_who_writes_none(layered: Layered) -> None:
    layered.below(LIMITS)
    config = layered.load("sources: [@/pfs]\n")
    limits = config.source_limits
    found = config.copy_threads, config.scan_ops_per_s, limits.bytes_per_s, limits.ops_per_s
    assert found == (8, 100, 10 << 20, 50)
    shown = layered.shown("sources: [@/pfs]\n")
    assert shown["shared_tpool_size"] == ("8", "site", f"{layered.site}:6")
    assert shown["scan_rate"] == ("100", "site", f"{layered.site}:7")
    assert shown["source_limits.bandwidth"] == ("10MiB", "site", f"{layered.site}:8")


def test_less_than_the_limits_is_a_users_own_choice(layered: Layered) -> None:
    layered.below(LIMITS)
    config = layered.load("sources: [@/pfs]\nscan_rate: 20\nshared_tpool_size: 2\n")
    assert (config.copy_threads, config.scan_ops_per_s) == (2, 20)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("shared_tpool_size: 9\n", "shared_tpool_size: 9 exceeds the site's limit of 8"),
        ("scan_rate: 101\n", "scan_rate: 101 exceeds the site's limit of 100"),
        ("source_limits: {operations: 51}\n", "source_limits.operations: 51 exceeds the site's "),
        ("source_limits: {bandwidth: 30MiB}\n", "source_limits.bandwidth: 30 MiB exceeds the "),
        (LEVEL.format("4MiB"), "hierarchy[0].max_storage_quota: 4 MiB exceeds the site's "),
        (
            TIER.partition("\n")[0] + "\n" + TIER.partition("\n")[2].replace("1MiB", "2MiB")
            + LEVEL.format("2MiB").partition("\n")[2],
            "hierarchy[1].max_storage_quota: 4 MiB, together with the tiers before it, exceeds ",
        ),
    ],
)  # fmt: skip
def test_more_than_the_limits_is_refused(layered: Layered, text: str, said: str) -> None:
    layered.below(LIMITS)
    refused = layered.refusal("sources: [@/pfs]\n" + text)
    assert re.match(rf"{re.escape(str(layered.file))}:\d: {re.escape(said)}", refused)
    assert refused.endswith(", or ask your site's administrator")


@pytest.mark.parametrize(
    ("quotas", "hint"), [(("2MiB", "2MiB"), "write at most 1MiB"), (("3MiB", "1MiB"), "remove")]
)
def test_the_hint_leaves_the_tiers_before_their_room(
    layered: Layered, quotas: tuple[str, str], hint: str
) -> None:
    layered.below(LIMITS)
    levels = LEVEL.format(quotas[0]).replace("@/ssd2", "@/ssd")
    more = LEVEL.format(quotas[1]).partition("\n")[2]
    assert f"; {hint}" in layered.refusal(f"sources: [@/pfs]\n{levels}{more}")


def test_a_limit_holds_for_other_file_systems_below_its_directory(layered: Layered) -> None:
    """A limit for a directory also holds for a file system that is mounted below the directory, for
    example a separate file system for each user. It does not hold for a file system elsewhere."""
    layered.below(LIMITS.replace("{@: 3MiB}", "{@/ssd: 3MiB}"))
    with Mounts(layered.root) as mounts:
        mounts.tmpfs("ssd/user", 16 << 20)
        mounts.tmpfs("other", 16 << 20)
        text = "sources: [@/pfs]\n" + LEVEL.format("4MiB")
        refused = layered.refusal(text.replace("@/ssd2", "@/ssd/user"))
        assert "4 MiB exceeds the site's limit of 3 MiB for " in refused
        (tier,) = layered.load(text.replace("@/ssd2", "@/other")).tiers
        assert tier.quota_bytes == 4 << 20


def test_a_user_has_no_limits_to_give(layered: Layered) -> None:
    said = layered.refusal("sources: [@/pfs]\nlimits: {scan_rate: 1}\n")
    assert said.startswith(f"{layered.file}:2: limits: only the site's configuration may have ")


# --- the commands --------------------------------------------------------------------------------


@pytest.fixture
def monarch(tmp_path: Path, layered: Layered) -> Monarch:
    from support.command_line import run_monarch

    (tmp_path / "shm").mkdir()
    base = {"MONARCH_SHM": f"{tmp_path}/shm", "MONARCH_SITE_CONFIG": str(layered.site)}
    base |= {"PATH": os.environ["PATH"], "COLUMNS": "200"}
    return lambda *words, **more: run_monarch(words, {**base, **more})


def test_check_knows_both_files(monarch: Monarch, layered: Layered) -> None:
    done = monarch("config", "check")
    assert done.stdout == f"{layered.site}: can be used on this node, when a dataset is named\n"
    layered.file.write_text(f"sources: [{layered.root}/pfs]\n")
    done = monarch("config", "check", "-c", str(layered.file))
    said = f"{layered.file}: can be used on this node (together with {layered.site})\n"
    assert (done.returncode, done.stdout) == (0, said)


def test_show_prints_a_table_and_json(monarch: Monarch, layered: Layered) -> None:
    words = ("config", "show", "--source", f"{layered.root}/pfs")
    lines = monarch(*words).stdout.splitlines()
    assert lines[0].split() == ["key", "value", "from", "place"]
    cells = ["sources[0].path", f"{layered.root}/pfs", "command line", "--source"]
    assert re.split(r"  +", lines[1]) == cells
    found = {each["key"]: each for each in json.loads(monarch(*words, "--json").stdout)}
    assert found["hierarchy[0].max_storage_quota"] == {
        "key": "hierarchy[0].max_storage_quota",
        "value": "1MiB",
        "layer": "site",
        "place": f"{layered.site}:3",
    }


ORIGINAL = """\
data_plane:
  type: "root_standalone"
  shared_tpool_size: "6"
  has_shareable_file_descriptors: "true"
  hierarchy:
  - type: "disk"
    block_size: "131072"
    max_storage_size: "118111600641"
    prefix: "@/ssd"
  - type: "file_system"
    block_size: "max"
    prefix: "@/pfs"
metadata_container:
  epochs: "3"
debug: "false"
"""


@pytest.mark.parametrize("as_json", [False, True])
def test_convert_writes_todays_keys(monarch: Monarch, layered: Layered, as_json: bool) -> None:
    text = ORIGINAL.replace("@", str(layered.root))
    old, new = layered.root / "old", layered.root / "new.yaml"
    old.write_text(json.dumps(yaml.safe_load(text)) if as_json else text)
    done = monarch("config", "convert", "-o", str(new), str(old))
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(new.read_text()) == {
        "sources": [f"{layered.root}/pfs"],
        "hierarchy": [{"mount_point": f"{layered.root}/ssd", "max_storage_quota": "118111600641"}],
        "shared_tpool_size": 6,
    }
    lost = [line for line in new.read_text().splitlines() if line.startswith("# Not carried over")]
    told = [line for line in done.stderr.splitlines() if line.startswith("monarch: warning: ")]
    for key in (".type", "has_shareable_file_", "block_size", "metadata_container", "debug"):
        assert any(key in line for line in lost), key
    assert len(lost) == len(told) == 5
    again, was = read_user_file(new), read_user_file(old)
    assert as_yaml(again) == as_yaml(was)
    done = monarch("config", "convert", "-o", str(new), str(old))
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2, f"monarch: {new}: exists already; name another file with -o",
    )  # fmt: skip
