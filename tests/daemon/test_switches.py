"""Switch files on a file system that hangs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.session import Session, wait_until

from monarch_py.daemon import switches
from monarch_py.daemon.switches import Switches
from monarch_py.demo.slowsource import SlowSource


def test_a_daemon_works_while_its_switch_file_does_not_answer(
    session_factory: Callable[..., Session], slow_factory: Callable[..., SlowSource], tree: Path
) -> None:
    mounted = slow_factory(attr_timeout=0)
    switch = mounted.mountpoint / "off"
    session = session_factory(tree, switch_file=str(switch), prefetch="eager").start()
    mounted.latency(getattr=3600)
    try:
        asked = mounted.counts()["getattr"]
        wait_until(lambda: mounted.counts()["getattr"] > asked, what="a look at the switch")
        session.forget()
        status = session.wait_idle()
        assert (status["switched_off"], status["sources"][0]["wanted"]) == (False, 0)
    finally:
        mounted.latency(getattr=0)
    (mounted.backing / "off").touch()
    wait_until(lambda: session.status()["switched_off"], what="the switch")


class Hanging:
    """Replaces os.path.exists by a function that returns only when the test lets it, as on a file
    system that hangs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers, self.is_there = threading.Event(), False
        monkeypatch.setattr(os.path, "exists", self._exists)

    def _exists(self, _path: Path) -> bool:
        assert self.answers.wait(60)
        return self.is_there


def test_the_last_answer_holds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(switches, "LOOK_S", 0.0)
    disk = Hanging(monkeypatch)
    looked = Switches([Path("/nfs/off")], limit_s=0.01)
    try:
        assert looked.are_off(), "without an answer, Monarch must be off"
        disk.answers.set()
        wait_until(lambda: not looked.are_off(), what="the first answer")
        disk.answers.clear()
        monkeypatch.setattr(switches, "LIMIT_S", 0.05)
        wait_until(lambda: not looked.are_off() and caplog.messages, what="the warning")
        assert caplog.messages == ["/nfs/off does not answer: Monarch stays on until it does"]
        disk.is_there = True
        disk.answers.set()
        wait_until(looked.are_off, what="the switch")
    finally:
        disk.answers.set()
        looked.close()
