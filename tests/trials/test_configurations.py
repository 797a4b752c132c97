"""Configurations with odd values, keys and shapes are either accepted, or refused in one sentence.

The sentence names the place of the problem. No configuration hangs, is executed, or ends in a
traceback."""

from __future__ import annotations

import copy
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import draws

from monarch_py.cli import group
from monarch_py.config.load import load_config
from monarch_py.config.schema import Config
from monarch_py.errors import ConfigError

DOCS = Path(__file__).resolve().parents[2] / "docs"
SHORT, LONG = 150, 20_000
LOAD_LIMIT_S = 5.0
DOCTOR_LIMIT_S = 30.0
# A configuration with every key that has a default; @ stands for the directory of the test.
ALL_KEYS = """
sources:
- {path: "@/pfs", include: ["*.a", "t/**"], exclude: ["*.tmp"], min_size: 0, max_size: 64GiB}
- "@/pfs2"
hierarchy:
- {mount_point: "@/ssd", max_storage_quota: 1MiB, type: ssd, persistent: false, block_size: max}
- {mount_point: "@/ssd2", max_storage_quota: 2MiB, persistent: true, eviction: none}
staging: {max_storage_quota: 1MiB, mount_point: "@/staging"}
block_size: 1MiB
shared_tpool_size: 4
scan_rate: 5000
prefetch: on_demand
metadata: cached
revalidate: 5min
source_limits: {bandwidth: 1GiB, operations: 100}
peers: {address: 127.0.0.1, port: 0, fetch: fastest}
switch_file: "@/off"
version: 1
tuning:
  min_reads: 2
  scan_threads: 4
  placement: first_fit
  fill_after: 10%
  promote_mappings: true
  balance_ranks: true
"""
KEYS = ["plan", "performance", "debug", "data_plane", "hierarchy", "mount_point", "prefix", "x", ""]
KEYS += ["tuning", "min_reads"]
# Fragments of YAML that cannot be written as a Python value.
RAW = [
    '!!python/object/apply:os.system ["touch @/executed"]',
    "!!python/name:os.system",
    "!!binary aGVsbG8=",
    "!!set {a, b}",
    '"\\ud800"',
    '"a\\0b"',
    "&a [*a, *a]",
    "&a {b: *a}",
    "*none",
    "<<: 1",
    "{? [a, b] : c}",
    "2024-02-30",
    "{a: 1",
    "'",
    "\t",
    "---",
    "...",
]
VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 3, 65_536, 2**63, 2**70, 0.5, 1e308, float("inf"), float("nan")),
    *([], {}, [[]], [None], ["a", 1], {"": 1}, {"path": {}}, [{"path": "@/pfs"}], {1: 2}),
    *("", " ", "\n", "a\nb", "[bold]x[/bold]", "[/]", "%s{}", "x" * 300, "/" + "x/" * 2000),
    *("é" * 200, "½GiB", "٣GiB", "1e9999GiB", "-5GiB", "1_000", "0x10", "1:30", "10EiB", "max"),
    *("$", "$$", "${NOT_SET}", "$HOME", "~", "~nobody-here/x", ".", "..", "relative", "//", "/"),
    *("/proc", "/sys", "/dev/null", "/dev/zero", "/dev/full", "/etc/passwd", "@", "@/pfs", "@/ssd"),
    *("@/fifo", "@/loop", "@/pfs/in", "@/file", "@/closed", "@/none/none", "@/ssd/..", "@/link"),
    *("*a*a*a*a*a*b", "[a", "[!", "**/**/**", "\\", "{a,b", "ssd", "ram", "planned", "yes", "NO"),
    *("0.0.0.0", "::1", "256.1.1.1", "localhost", "eth0", "90s", "5 min", "-1s", "101%", "source"),
]


def examples(root: Path) -> list[Any]:
    """Returns ALL_KEYS and the documentation's example configurations. Their paths are replaced by
    paths of existing directories."""
    found = [ALL_KEYS]
    for page in ("configuration.md", "nodes.md"):
        found += re.findall(r"```yaml\n(.*?)```", (DOCS / page).read_text(), re.S)
    places = {"/pfs/[a-z/]+": "@/pfs", "/dev/shm": "@/ssd", "/local/[A-Za-z$/]+": "@/ssd2"}
    for pattern, place in places.items():
        found = [re.sub(pattern, place, text) for text in found]
    found = [re.sub(r"\b[0-9.]+(?:GiB|TiB)|\d{9,}", "1MiB", text) for text in found]
    return [yaml.safe_load(text.replace("@", str(root))) for text in found]


class Mutations:
    """Draws configurations that differ a little from those of the documentation."""

    def __init__(self, root: Path, draws: random.Random) -> None:
        self._root, self._draws, self._examples = str(root), draws, examples(root)

    def text(self) -> str:
        document = {"top": copy.deepcopy(self._draws.choice(self._examples))}
        for _ in range(self._draws.choice((1, 1, 2, 3))):
            self._mutate(*self._draws.choice(list(self._places(document))))
        text = yaml.safe_dump(document["top"], allow_unicode=True, sort_keys=False)
        # _mutate may have put marks RAW<n> into the document. Each mark is replaced by fragment n
        # of RAW, without quotes.
        text = re.sub(r"'?RAW(\d+)'?", lambda mark: RAW[int(mark[1])], text)
        if self._draws.random() < 0.15:
            text = self._splice(text)
        return text.replace("@", self._root)

    def _places(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """Yields every place of a document as a pair: a mapping and a key, or a list and an
        index."""
        steps = list(node) if isinstance(node, dict) else range(len(node))
        for step in steps:
            yield node, step
            if isinstance(node[step], dict | list):
                yield from self._places(node[step])

    def _mutate(self, node: Any, step: Any) -> None:
        how = self._draws.choice(
            ("value", "value", "value", "raw", "remove", "key", "nest", "swap")
        )
        if how == "value":
            node[step] = copy.deepcopy(self._draws.choice(VALUES))
        elif how == "raw":
            node[step] = f"RAW{self._draws.randrange(len(RAW))}"
        elif how == "nest":
            node[step] = self._draws.choice(([node[step]], {"a": node[step]}, [node[step]] * 20))
        elif step == "top":
            node[step] = self._draws.choice((None, [], "text", [node[step]]))
        elif how == "remove":
            del node[step]
        elif how == "swap":
            other = self._draws.choice(list(node) if isinstance(node, dict) else range(len(node)))
            node[step], node[other] = node[other], node[step]
        elif isinstance(node, dict):
            word = str(step)
            name = self._draws.choice((*KEYS, word[:-1], word + "s", word.upper(), f"{word} "))
            node[name] = node.pop(step)
        else:
            node.append(node[step])

    def _splice(self, text: str) -> str:
        at = self._draws.randrange(len(text) + 1)
        some = self._draws.choice(
            ("", "\t", "  ", "\n", ": ", "- ", "#", "'", '"', "{", "\x07", "é")
        )
        return text[:at] + some + text[at + self._draws.randrange(4) :]


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Fails if the block takes longer than `seconds`, even if it waits in a system call."""

    def too_long(*_: object) -> None:
        raise AssertionError(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Returns a directory with the files and directories that the configurations name."""
    for name in ("pfs/in", "pfs2", "ssd", "ssd2", "staging", "closed", "shm"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "pfs/in/f").write_text("content\n")
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("ssd")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "closed").chmod(0)
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


def outcome(file: Path, text: str) -> Config | str:
    """Returns the loaded configuration, or the sentence with which the loader refuses it."""
    file.write_text(text)
    with limited(LOAD_LIMIT_S):
        try:
            return load_config(file)
        except ConfigError as error:
            return str(error)


def is_sentence(said: str, file: Path) -> bool:
    """Returns whether the text is a single printable line: the name of the file, the number of the
    line in the file if it is known, and then what is wrong."""
    return said.isprintable() and bool(re.match(rf"{re.escape(str(file))}(:\d+)?: \S.*\w", said))


@pytest.mark.parametrize(
    ("seed", "count"), [(1, SHORT), pytest.param(2, LONG, marks=pytest.mark.long)]
)
def test_the_loader(root: Path, seed: int, count: int) -> None:
    mutations, file = Mutations(root, random.Random(seed)), root / "tiers.yaml"
    taken = 0
    for _ in range(count):
        text = mutations.text()
        try:
            found = outcome(file, text)
        except BaseException:
            print(text)
            raise
        taken += isinstance(found, Config)
        assert isinstance(found, Config) or is_sentence(found, file), f"{found}\n{text}"
    assert not (root / "executed").exists()
    # The test needs both kinds of configurations. So the loader must accept more than a twentieth
    # and less than half of them.
    assert count // 20 < taken < count // 2


def is_within(config: Config, root: Path) -> bool:
    """Returns whether all directories that a daemon would write to are below `root`."""
    areas = [*config.tiers, *([config.staging] if config.staging else [])]
    return all(area.mount_point.resolve().is_relative_to(root) for area in areas)


def drawn(root: Path, seed: int, count: int) -> list[tuple[Path, bool]]:
    """Writes `count` configurations with random errors, and returns pairs: the file, and whether
    the loader accepts it. The loader accepts half of these configurations."""
    mutations = Mutations(root, random.Random(seed))
    files: list[tuple[Path, bool]] = []
    while len(files) < count:
        file = root / f"{len(files)}.yaml"
        found = outcome(file, mutations.text())
        is_taken = isinstance(found, Config)
        if is_taken == len(files) % 2 and (isinstance(found, str) or is_within(found, root)):
            files.append((file, is_taken))
    return files


def doctor(file: Path, output: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    """Returns the findings of `monarch doctor`."""
    words = ["doctor", "--json", "-c", str(file)]
    output.readouterr()
    with limited(DOCTOR_LIMIT_S), pytest.raises(SystemExit) as ended:
        sys.exit(group.main(words, prog_name="monarch", standalone_mode=False))
    found: list[dict[str, str]] = json.loads(output.readouterr().out)
    assert ended.value.code in (None, 0, 1)
    assert bool(ended.value.code) == any(finding["level"] == "problem" for finding in found)
    return found


def test_doctor(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MONARCH_SHM", str(root / "shm"))
    for file, is_taken in drawn(root, 3, draws.sized(4, 80)):
        found = {finding["what"]: finding for finding in doctor(file, capsys)}
        text = f"{found}\n{file.read_text()}"
        said = found["configuration"]
        assert (said["level"] != "problem") == is_taken, text
        assert is_taken or is_sentence(f"{said['found']}; {said['hint']}", file), text


def test_run(root: Path) -> None:
    def run(file: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "monarch_py", "run", "-c", file, "cat", root / "pfs/in/f"],
            env={**os.environ, "MONARCH_SHM": str(root / "shm")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    files = drawn(root, 4, draws.sized(2, 20))
    with ThreadPoolExecutor(2) as pool:
        for (file, is_taken), done in zip(files, pool.map(run, [f for f, _ in files]), strict=True):
            text = f"{done}\n{file.read_text()}"
            assert "Traceback" not in done.stderr, text
            if is_taken:
                assert (done.returncode, done.stdout) == (0, "content\n"), text
            else:
                assert (done.returncode, done.stdout) == (2, ""), text
                said = done.stderr.removeprefix("monarch: ").removesuffix("\n")
                assert is_sentence(said, file), text
    assert not (root / "executed").exists()
