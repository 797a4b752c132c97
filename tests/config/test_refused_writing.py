"""Configurations with mistakes in their text are refused. The mistakes concern the YAML syntax,
keys, types, sizes and counts."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import draws

from monarch_py.config.load import load_config
from monarch_py.errors import ConfigError

if TYPE_CHECKING:
    from config.conftest import Site

MIB = 1 << 20

# The smallest configuration; @ stands for the directory of the test.
SMALLEST = """\
sources: [@/pfs]
hierarchy:
- mount_point: @/ssd
  max_storage_quota: 1MiB
"""
TIER = "hierarchy: [{mount_point: @/ssd, max_storage_quota: 1MiB}]\n"
SOURCES = "sources: [@/pfs]\n"
QUOTA = "hierarchy[0].max_storage_quota"

# (configuration, line, key, words of the problem, words of the hint)
REFUSED = {
    "not a mapping": ("- a\n", 1, "", "cannot be a list", "sources, hierarchy"),
    "a long text in place of a mapping": ("word " * 50, 1, "", " word wo...'", "sources"),
    "a long key": (SMALLEST + "x" * 100 + ": 1\n", 5, "x" * 77 + "...", "unknown", "sources"),
    "a long word": (SMALLEST + f"scan: {'x' * 100}\n", 5, "scan", "xxx...' is not known", "full"),
    "a long relative path": (
        SMALLEST.replace("@/pfs", "x" * 100),
        1,
        "sources[0]",
        "xxx...' is not an absolute path",
        "write an absolute path",
    ),
    "unknown key": (SMALLEST + "placment: x\n", 5, "placment", "unknown", "under 'tuning:'?"),
    "unknown key, nothing near": (SMALLEST + "x: 1\n", 5, "x", "unknown", "sources, hierarchy"),
    "unknown key of a source": (
        "sources:\n- path: @/pfs\n  includes: [a]\n" + TIER,
        3,
        "sources[0].includes",
        "unknown key",
        "did you mean 'include'?",
    ),
    "unknown key of a tier": (
        SMALLEST + "  quota: 1MiB\n",
        5,
        "hierarchy[0].quota",
        "unknown key",
        "did you mean 'max_storage_quota'?",
    ),
    "unknown key like no other": (
        SMALLEST + "  zone: 1\n",
        5,
        "hierarchy[0].zone",
        "unknown key",
        "mount_point, max_storage_quota",
    ),
    "a NUL in the name of a file": (
        SMALLEST + 'performance: "a\\0b"\n',
        5,
        "performance",
        "contains a character that is not allowed in a path",
        "remove it",
    ),
    "tiny block": (SMALLEST + "block_size: 3\n", 5, "block_size", "out of range", "64KiB"),
    "unknown key below data_plane": (
        "data_plane:\n  blocksize: 1MiB\n",
        2,
        "data_plane.blocksize",
        "unknown key",
        "did you mean 'block_size'?",
    ),
    "key that is no word": ("? [a]\n: b\n", 1, "?", "cannot be a list", "key: value"),
    "duplicate key": (
        SMALLEST + "scan_rate: 1\nscan_rate: 2\n",
        6,
        "scan_rate",
        "is given twice, first in line 5",
        "keep one",
    ),
    "duplicate key in two spellings": (
        SMALLEST + "  prefix: @/ssd2\n",
        5,
        "hierarchy[0].prefix",
        "means the same as 'hierarchy[0].mount_point', first in line 3",
        "keep one 'mount_point'",
    ),
    "duplicate key at the top and below data_plane": (
        "scan_rate: 1\ndata_plane:\n  scan_rate: 2\n",
        3,
        "data_plane.scan_rate",
        "is given twice, first in line 1",
        "keep one",
    ),
    "duplicate key without effect": (
        "debug: 1\ndebug: 2\n",
        2,
        "debug",
        "is given twice",
        "keep one",
    ),
    "key without value": (SMALLEST + "scan_rate:\n", 5, "scan_rate", "has no value", "remove"),
    "list wanted": (
        "sources: {path: @/pfs}\n",
        1,
        "sources",
        "cannot be a mapping",
        "write '- path: /the/dataset' below it",
    ),
    "list of tiers wanted": (
        SOURCES + "hierarchy: {mount_point: @/ssd, max_storage_quota: 1MiB}\n",
        2,
        "hierarchy",
        "cannot be a mapping",
        "'- mount_point: /local/scratch' and '  max_storage_quota: 110GiB' below it",
    ),
    "list of patterns wanted": (
        "sources: [{path: @/pfs, include: a}]\n",
        1,
        "sources[0].include",
        "cannot be 'a'",
        "write ['a']",
    ),
    "mapping wanted": (
        "hierarchy: [@/ssd]\n",
        1,
        "hierarchy[0]",
        "cannot be '",
        "mount_point",
    ),
    "number wanted": (
        SMALLEST + "scan_rate: []\n",
        5,
        "scan_rate",
        "cannot be a list",
        "1 or more",
    ),
    "number is text": (SMALLEST + "scan_rate: 1:30\n", 5, "scan_rate", "'1:30'", "1 or more"),
    "number of 19 digits": (
        SMALLEST + f"scan_rate: {10**18}\n",
        5,
        "scan_rate",
        "cannot be '1000",
        "1 or more",
    ),
    "number beyond all floats": (
        SMALLEST + "scan_rate: 1e999\n",
        5,
        "scan_rate",
        "cannot be '1e999'",
        "1 or",
    ),
    "rate of zero": (SMALLEST + "scan_rate: 0\n", 5, "scan_rate", "out of range", "1 or more"),
    "too few threads": (
        SMALLEST + "shared_tpool_size: 0\n",
        5,
        "shared_tpool_size",
        "0 is out of range",
        "from 1 to 256",
    ),
    "more reads than threads": (
        SMALLEST + "shared_tpool_size: 4\ntuning:\n  min_reads: 5\n",
        7,
        "tuning.min_reads",
        "5 is more than shared_tpool_size",
        "write 4 or less",
    ),
    "too many threads": (
        SMALLEST + "tuning: {scan_threads: 257}\n",
        5,
        "tuning.scan_threads",
        "257 is out of range",
        "from 1 to 256",
    ),
    "flag wanted": (
        SMALLEST + "  persistent: maybe\n",
        5,
        "hierarchy[0].persistent",
        "cannot be 'maybe'",
        "true or false",
    ),
    "unknown type": (
        SMALLEST + "  type: tbb_memory_buffer\n",
        5,
        "hierarchy[0].type",
        "'tbb_memory_buffer' is not known",
        "ram, ssd or file_system",
    ),
    "unknown placement": (
        SMALLEST + "tuning: {placement: lru}\n",
        5,
        "tuning.placement",
        "'lru'",
        "first_fit",
    ),
    "a key for experts at the top": (
        SMALLEST + "min_reads: 8\n",
        5,
        "min_reads",
        "belongs under 'tuning:'",
        "move it there, indented",
    ),
    "a key for experts below data_plane": (
        "data_plane:\n  min_reads: 8\n",
        2,
        "data_plane.min_reads",
        "belongs under 'tuning:'",
        "move it there, indented",
    ),
    "a key of the top under tuning": (
        SMALLEST + "tuning:\n  scan_rate: 8\n",
        6,
        "tuning.scan_rate",
        "does not belong",
        "beside 'tuning:'",
    ),
    "an unknown key under tuning": (
        SMALLEST + "tuning:\n  min_read: 8\n",
        6,
        "tuning.min_read",
        "unknown key",
        "did you mean 'min_reads'?",
    ),
    "a key for experts twice": (
        SMALLEST + "tuning: {min_reads: 8}\ndata_plane: {tuning: {min_reads: 9}}\n",
        6,
        "data_plane.tuning",
        "is given twice, first in line 5",
        "keep one 'tuning'",
    ),
    "tuning is no mapping": (
        SMALLEST + "tuning: 3\n",
        5,
        "tuning",
        "cannot be '3'",
        "min_reads",
    ),
    "unknown version": (SMALLEST + "version: 2\n", 5, "version", "'2' is not known", "write 1"),
    "bad size": (SMALLEST.replace("1MiB", "1 lot"), 4, QUOTA, "'1 lot' is not a size", "110GiB"),
    "size without unit": (SMALLEST.replace("1MiB", "1G"), 4, QUOTA, "GiB or GB", "110GiB"),
    "negative size": (SMALLEST.replace("1MiB", "-1"), 4, QUOTA, "'-1' is not a size", "110GiB"),
    "size is a list": (SMALLEST.replace("1MiB", "[]"), 4, QUOTA, "cannot be a list", "110GiB"),
    "quota of zero": (SMALLEST.replace("1MiB", "0"), 4, QUOTA, "leaves no room", "remove"),
    "a level as source beside sources": (
        SOURCES + "hierarchy: [{mount_point: @/ssd}]\n",
        2,
        QUOTA,
        "is missing, and 'sources' already says",
        "add a quota",
    ),
    "no mount point": (
        "hierarchy: [{max_storage_quota: 1}]\n",
        1,
        "hierarchy[0].mount_point",
        "missing",
        "add 'mount_point: ...'",
    ),
    "no path": ("sources: [{min_size: 1}]\n", 1, "sources[0].path", "missing", "add 'path: ...'"),
    "no hierarchy": (SOURCES, 1, "hierarchy", "is missing", "add 'hierarchy: ...'"),
    "no tiers": (SOURCES + "hierarchy: []\n", 2, "hierarchy", "no tier", "add a level"),
    "only the source": (
        "hierarchy: [{prefix: @/pfs}]\n",
        1,
        "hierarchy",
        "no tier",
        "add a level",
    ),
    "no sources": ("sources: []\n" + TIER, 1, "sources", "no source", "add the dataset"),
    "sources missing": ("\n" + TIER, 2, "sources", "no source", "add the dataset"),
    "too many sources": (
        "sources: [" + ", ".join(["@/pfs"] * 17) + "]\n" + TIER,
        1,
        "sources",
        "has 17 entries",
        "at most 16",
    ),
    "too many tiers": (
        SOURCES + "hierarchy:\n" + "- {prefix: @/ssd, max_storage_size: 1}\n" * 17,
        2,
        "hierarchy",
        "has 17 entries",
        "at most 16",
    ),
    "bad glob": (
        "sources:\n- path: @/pfs\n  exclude:\n  - ok\n  - '[a'\n" + TIER,
        5,
        "sources[0].exclude[1]",
        "'[a' has an unclosed '['",
        "'Patterns'",
    ),
    "sizes exchanged": (
        "sources:\n- path: @/pfs\n  min_size: 1025\n  max_size: 1KiB\n" + TIER,
        3,
        "sources[0].min_size",
        "1025 bytes is more than max_size, 1024 bytes",
        "swap",
    ),
    "block size off the pages": (
        SMALLEST + "block_size: 100001\n",
        5,
        "block_size",
        "not a multiple of 4096",
        "98304",
    ),
    "block size too small": (
        SMALLEST + "block_size: 60KiB\n",
        5,
        "block_size",
        "out of range",
        "64KiB to 1GiB",
    ),
    "block size of a tier too large": (
        SMALLEST + "  block_size: 2GiB\n",
        5,
        "hierarchy[0].block_size",
        "out of range",
        "64KiB to 1GiB",
    ),
    "a name for an address": (
        SMALLEST + "peers: {address: node7}\n",
        5,
        "peers.address",
        "'node7' does not appear to be an IPv4 or IPv6 address",
        "10.0.0.5",
    ),
    "an address of one node's interface": (
        SMALLEST + "peers: {address: 'fe80::1%eth0'}\n",
        5,
        "peers.address",
        "contains an interface name, which only this node knows",
        "10.0.0.5",
    ),
    "an interface and an address": (
        SMALLEST + "peers:\n  interface: ib0\n  address: 10.0.0.5\n",
        7,
        "peers.address",
        "cannot be given together with 'interface'",
        "remove one",
    ),
    "an eviction that is none": (
        "sources: [@/pfs]\nhierarchy:\n- mount_point: @/ssd\n  max_storage_quota: 1MiB\n"
        "  eviction: lru\n",
        5,
        "hierarchy[0].eviction",
        "'lru'",
        "planned",
    ),
    "a way to fetch that is none": (
        SMALLEST + "peers: {fetch: source}\n",
        5,
        "peers.fetch",
        "'source'",
        "holders",
    ),
    "a port that is none": (
        SMALLEST + "peers: {port: 65536}\n",
        5,
        "peers.port",
        "out of range",
        "65535",
    ),
    "tab": (SMALLEST + "\tx: 1\n", 5, "", "not YAML (a tab is not", "indent with spaces instead"),
    "no space behind a colon": (
        SMALLEST.replace("quota: 1", "quota:1"),
        4,
        "",
        "not YAML (could not find expected ':')",
        "write 'key: value'",
    ),
    "unclosed": ("a:\n  b: [1\n", 3, "", "not YAML (expected ',' or ']'", "indent"),
    "pattern without quotes": (
        "sources:\n- {path: /x, include: [*.tar]}\n",
        2,
        "",
        "not YAML (",
        "in quotes",
    ),
    "two documents": ("a: 1\n---\nb: 1\n", 2, "", "not YAML (but found another", "key: value"),
    "control character": ("a: 1\nb: \x07\n", 2, "", "#x0007 is not allowed", "remove it"),
    "no such character": (r'a: "\UFFFFFFFF"', 1, "", "above U+10FFFF", "correct the \\U escape"),
    "nested too deeply": (
        "[" * draws.sized(1000, 5000),
        1,
        "",
        "nested too deeply",
        "check the path",
    ),
    "empty": ("", 1, "", "the file is empty", "'sources' and 'hierarchy'"),
    "only a comment": ("# nothing\n", 1, "", "the file is empty", "'sources' and 'hierarchy'"),
    "only a mark": ("---\n", 1, "", "the file is empty", "'sources' and 'hierarchy'"),
}


@pytest.mark.parametrize(
    ("text", "line", "key", "problem", "hint"), REFUSED.values(), ids=list(REFUSED)
)
def test_refused_with_file_line_key_and_hint(
    site: Site, text: str, line: int, key: str, problem: str, hint: str
) -> None:
    site.check_refused(text, line, key, problem, hint)


@pytest.mark.parametrize(
    ("name", "problem"),
    [("none.yaml", "No such file or directory"), (".", "Is a directory"), ("file/x", "Not a dir")],
)
def test_a_file_that_cannot_be_read_is_refused(site: Site, name: str, problem: str) -> None:
    path = site.root / name
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}: the configuration cannot be read ({problem}")
    assert str(caught.value).endswith("; check the path and its permissions")


@pytest.mark.parametrize(
    ("data", "problem"),
    [(b"a: 1\nb: \xff\n", ":2: not UTF-8 text; save"), (b"#" * (MIB + 1), ": larger than 1 MiB")],
)
def test_a_file_that_is_no_text_is_refused(site: Site, data: bytes, problem: str) -> None:
    site.file.write_bytes(data)
    with pytest.raises(ConfigError, match=re.escape(f"{site.file}{problem}")):
        load_config(site.file)


def test_a_pipe_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe can be read only once, so load_config must not open it. If load_config did, this test
    would hang."""
    pipe = site.root / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match=rf"^{pipe}: is a pipe, .*; write it to a file$"):
        load_config(pipe)
    monkeypatch.setenv("MONARCH_SITE_CONFIG", str(pipe))
    with pytest.raises(ConfigError, match=rf"^{pipe}: is a pipe, .*; write it to a file$"):
        site.load(SMALLEST)


PIECES = [*SMALLEST.splitlines(keepends=True), "- ", "  ", "*", "&a ", "<<: ", "? ", "max", "null"]
PIECES += ["data_plane:\n", "path: /\n", "type: ram\n", "block_size: ", "include: [a]\n", "{", "]"]


@settings(max_examples=draws.examples(40), deadline=None)
@given(parts=st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12))
def test_no_text_leads_to_another_error(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str]
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text("".join(parts), encoding="utf-8", errors="replace")
    try:
        assert load_config(file).tiers
    except ConfigError as error:
        assert str(error).startswith(f"{file}:")
