"""Bringing the daemons up: every rank prepares, rank 0 lists the sources, every rank starts its
daemon. After each of these all ranks know how it went on every other, so that they go on together
or end together."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from monarch_py.bringup.card import Card, are_up, check_cards, make_card
from monarch_py.bringup.launcher import Launch
from monarch_py.bringup.ranks import Ranks
from monarch_py.client import Client
from monarch_py.cluster import Cluster, Member
from monarch_py.config import Config, load_config
from monarch_py.daemon.lifecycle import STAY, Told, spawn
from monarch_py.errors import MonarchError, SessionError
from monarch_py.peers import new_secret
from monarch_py.scan import Record, give, record_sources
from monarch_py.session import SessionDir

__all__ = ["Node", "bring_up", "listed"]

T = TypeVar("T")

# Names of nodes in one sentence; of more, their number is said.
MOST_NAMES = 4


@dataclass(frozen=True, slots=True)
class Node:
    """This rank's daemon, up like all others.

    process : None if all of them ran already;  lifeline : it ends when this is closed, but for
    `detach`;  rank : this node's;  names : of all nodes, in the order of their ranks;  warnings :
    one sentence each, of all nodes
    """

    process: subprocess.Popen[bytes] | None
    lifeline: int | None
    rank: int
    names: list[str]
    warnings: list[str]

    def detach(self) -> None:
        """The daemon stays when this process ends."""
        if self.lifeline is not None:
            os.write(self.lifeline, STAY)
            os.close(self.lifeline)
        if self.process is not None:
            self.process.returncode = 0  # not ours to wait for any more


class _EndError(MonarchError):
    """All ranks end, since one of them cannot go on: all raise this, with the same words."""

    def __init__(self, words: list[str], exit_status: int) -> None:
        super().__init__("\nmonarch: ".join(words))
        self.exit_status = exit_status  # type: ignore[misc]


@dataclass(slots=True)
class _Outcome:
    name: str
    value: Any = None
    problem: str = ""
    exit_status: int = 0


def bring_up(config_file: Path, launch: Launch) -> Node:
    """Starts this node's daemon, as all other ranks do theirs, and returns when all of them serve.

    SystemExit, on all ranks alike, if that cannot be on one of them: rank 0 has said why then, and
    no daemon is left. SessionError when the ranks do not come together.
    """
    ranks = Ranks(launch)
    try:
        node = _bring_up(ranks, config_file)
    except _EndError as end:
        if ranks.rank == 0:
            sys.stderr.write(f"monarch: {end}\n")
        # A launcher may end all others with the first rank that ends badly.
        ranks.meet()
        ranks.leave()
        sys.exit(end.exit_status)
    except BaseException as error:
        if isinstance(error, Exception):
            traceback.print_exc()
        ranks.abort()
        raise
    ranks.leave()
    return node


def _bring_up(ranks: Ranks, config_file: Path) -> Node:
    here = _Here(config_file, ranks.names[ranks.rank])
    cards = _together(ranks, here.prepare)
    warnings = _told_once([(card.name, words) for card in cards for words in card.warnings])
    if are_up(cards):
        return Node(None, None, ranks.rank, ranks.names, warnings)
    _alike(check_cards, cards)
    _together(ranks, here.scan if ranks.rank == 0 else lambda: None)
    ranks.meet()
    # The same moment on all nodes, but for a pause of `meet`; their clocks may differ.
    now = time.monotonic()
    record, age, secret = ranks.broadcast((here.record, now - here.began, new_secret()))
    cluster = Cluster(ranks.rank, _members(cards), secret)
    try:
        found = _together(ranks, lambda: here.start(cluster, record, now - age))
    except BaseException:
        here.end()
        raise
    said = [(name, words) for name, why in zip(ranks.names, found, strict=True) for words in why]
    warnings += _told_once(said)
    return Node(here.process, here.lifeline, ranks.rank, ranks.names, warnings)


class _Here:
    """This rank's part, step by step."""

    def __init__(self, config_file: Path, name: str) -> None:
        self._config_file, self._name = config_file, name
        self._listener: socket.socket | None = None
        self.record = b""
        self.began = 0.0  # the scan, on time.monotonic() [s]
        self.process: subprocess.Popen[bytes] | None = None
        self.lifeline: int | None = None

    def prepare(self) -> Card:
        self._config = load_config(self._config_file)
        card, self._listener = make_card(self._config, self._name)
        return card

    def scan(self) -> None:
        self.began = time.monotonic()
        try:
            self.record = record_sources(self._config)
        except OSError as error:
            raise SessionError(f"a source cannot be listed: {error}") from error

    def start(self, cluster: Cluster, record: bytes, began: float) -> list[str]:
        """Starts the daemon; why tiers are not used, one sentence each."""
        assert self._listener is not None
        _check_sources(self._config, Record(record), cluster.members[0].name)
        fd = give(record, began)
        reading, self.lifeline = os.pipe2(os.O_CLOEXEC)
        with self._listener as listener:
            try:
                told = Told(cluster, listener, fd, reading)
                self.process = spawn(self._config.file, detach=False, told=told)
            finally:
                os.close(reading)
                os.close(fd)
        tiers = Client(SessionDir.of(self._config.file)).ask("status")["tiers"]
        return [tier["why"] for tier in tiers if not tier["usable"]]

    def end(self) -> None:
        if self.lifeline is not None:
            os.close(self.lifeline)
        if self.process is not None:
            self.process.wait()


# --- all ranks, or none ---------------------------------------------------------------------------


def _together(ranks: Ranks, work: Callable[[], T]) -> list[T]:
    """Does a part of the work on every rank; what it returned on each, on every rank."""
    outcome = _Outcome(ranks.names[ranks.rank])
    try:
        outcome.value = work()
    except MonarchError as error:
        outcome.problem, outcome.exit_status = str(error), error.exit_status
    except Exception as error:  # the others would wait for this rank
        traceback.print_exc()
        outcome.problem, outcome.exit_status = f"{type(error).__name__}: {error}", 1
    outcomes = ranks.gather(outcome)
    failed = [o for o in outcomes if o.problem]
    if failed:
        words = _told_once([(o.name, o.problem) for o in failed])
        raise _EndError(words, max(o.exit_status for o in failed))
    return [o.value for o in outcomes]


def _alike(check: Callable[[Sequence[Card]], None], cards: Sequence[Card]) -> None:
    """A check of what all ranks know, which fails on all of them or on none."""
    try:
        check(cards)
    except MonarchError as error:
        raise _EndError([str(error)], error.exit_status) from None


def _told_once(said: list[tuple[str, str]]) -> list[str]:
    """What several nodes say is one sentence, which begins with their names."""
    speakers: dict[str, list[str]] = {}
    for name, words in said:
        speakers.setdefault(words, []).append(name)
    return [f"{listed(names)}: {words}" for words, names in speakers.items()]


def listed(names: list[str]) -> str:
    """A few of them, and how many more there are."""
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:MOST_NAMES])} and {len(names) - MOST_NAMES} more"


# --- what they share ------------------------------------------------------------------------------


def _members(cards: Sequence[Card]) -> tuple[Member, ...]:
    found = []
    for card in cards:
        assert card.address is not None
        found.append(Member(card.name, *card.address, card.quotas))
    return tuple(found)


def _check_sources(config: Config, record: Record, first: str) -> None:
    """Whether this node has before it what rank 0 has listed: the same file system, with the same
    inode numbers. SessionError if not."""
    for number, source in enumerate(config.sources):
        samples = record.samples(number)
        is_same = _inode(source.real_path) == record.root_ino(number)
        # One look is enough, but where a file has been replaced since.
        if not is_same or (samples and all(_inode(source.real_path / p) != i for p, i in samples)):
            raise SessionError(
                f"{source.path} is not what {first} has under this name (other inode numbers);"
                " mount the same file system on all nodes, or start each node's daemon by itself"
                " with --alone"
            )


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None
