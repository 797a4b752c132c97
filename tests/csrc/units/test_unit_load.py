"""Tests what happens when the library is loaded: whether it attaches to a daemon, starts one, or
warns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from csrc.units.loading import ffi
from csrc.units.place import Place, control, open_descriptors

from monarch_py.native import ffi as native
from monarch_py.native import lib as daemons

NAMES = ("MONARCH_CONFIG", "MONARCH_SITE_CONFIG", "MONARCH_SOURCE", "MONARCH_DISABLE")
OFF, WAITING, ATTACHED = "off", "waiting", "attached"


class Loading:
    """Acts as a process that loads the library. The process has a given name and given environment
    variables."""

    def __init__(self, lib: Any, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lib, self.place, self.patch = lib, place, monkeypatch
        self.config = str(place.config)
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)

    def serve(self, *, has_clients: bool = True) -> None:
        """Creates the files of a daemon that serves. has_clients: whether the segment `clients`
        exists too; if not, the process cannot map all segments."""
        made = control(5)
        made.switch_file[0] = bytes(self.place.config.with_name("switch"))
        self.place.put("control", made)
        if has_clients:
            path = self.place.put("clients", daemons.MONARCH_MAGIC.to_bytes(8, "little"))
            os.truncate(path, native.sizeof("struct monarch_clients"))

    def load(
        self, variables: dict[str, str], process: str = "python", *, starts: bool = False
    ) -> str:
        """Loads the library in a process with the name `process`. Returns its state afterwards:
        OFF, WAITING for a daemon, or ATTACHED. starts: whether the library begins to start a
        daemon."""
        self.lib.attach_end()
        for name in NAMES:
            self.patch.delenv(name, raising=False)
        for name, value in variables.items():
            self.patch.setenv(f"MONARCH_{name.upper()}", value)
        assert self.lib.attach_load(process.encode(), starts), "errno has changed"
        current = self.lib.attach_current()
        return OFF if not current else WAITING if self.lib.attach_is_waiting() else ATTACHED

    def steps(self) -> str:
        found = os.fsdecode(ffi.string(self.lib.attach_steps()))
        return found.replace(self.config, "CONFIG")


@pytest.fixture
def loading(lib: Any, place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loading]:
    before = open_descriptors()
    yield Loading(lib, place, monkeypatch)
    lib.attach_end()
    assert open_descriptors() == before


def test_without_a_configuration_the_library_does_nothing(loading: Loading) -> None:
    loading.serve()
    cases: list[dict[str, str]] = [{}, {"config": ""}, {"site_config": ""}, {"source": "/data"}]
    for variables in cases:
        assert loading.load(variables) == OFF and loading.steps() == ""


@pytest.mark.parametrize("name", ["config", "site_config"])
def test_the_user_can_switch_the_library_off(loading: Loading, name: str) -> None:
    loading.serve()
    for value, found in (
        ("1", OFF), ("true", OFF), ("no", OFF), ("00", OFF), ("0", ATTACHED), ("", ATTACHED),
    ):  # fmt: skip
        assert loading.load({"disable": value, name: loading.config}) == found, value
        assert bool(loading.steps()) == (found == ATTACHED)


def test_a_daemon_that_serves_is_used(loading: Loading) -> None:
    """The user's configuration takes precedence over the site's. In the command `monarch`, the
    library attaches too, but never starts a daemon."""
    loading.serve()
    beside = "autostart CONFIG beside a daemon, passed on"
    for variables in (
        {"config": loading.config}, {"site_config": loading.config},
        {"config": loading.config, "site_config": "/none"},
        {"config": "", "site_config": loading.config},
    ):  # fmt: skip
        assert loading.load(variables) == ATTACHED and loading.steps() == beside
    assert loading.load({"config": loading.config}, "monarch") == ATTACHED
    assert loading.steps() == "passed on"


def test_a_switch_file_counts_from_the_beginning(loading: Loading) -> None:
    loading.serve()
    assert loading.load({"config": loading.config}) == ATTACHED
    assert not loading.lib.attach_is_off(loading.lib.attach_current())
    loading.place.config.with_name("switch").touch()
    assert loading.load({"config": loading.config}) == ATTACHED
    assert loading.lib.attach_is_off(loading.lib.attach_current())


MISSING = (
    "warning: no daemon serves CONFIG; Start one with `monarch start`, or unload the library with"
    ' eval "$(monarch env --unset)".'
)


def test_a_missing_daemon_is_reported_to_those_who_want_one(loading: Loading) -> None:
    """If no daemon serves, the library warns, except in the command `monarch`, which starts
    daemons. There is no warning either if a daemon is being started, if the site alone has set up
    Monarch, or if the user has stopped the daemon."""
    config = loading.config
    warned, silent = f"autostart CONFIG, {MISSING}, passed on", "autostart CONFIG, passed on"
    for variables, steps in (
        ({"config": config}, warned), ({"site_config": config}, silent),
        ({"site_config": config, "source": "/data"}, warned),
        ({"site_config": config, "source": ""}, silent),
    ):  # fmt: skip
        assert loading.load(variables) == WAITING and loading.steps() == steps
        assert loading.load(variables, starts=True) == WAITING and loading.steps() == silent
        assert loading.load(variables, "monarch") == WAITING and loading.steps() == "passed on"
    loading.place.put("stopped", b"")
    assert loading.load({"config": config}) == WAITING and loading.steps() == silent


def test_a_configuration_that_is_missing_is_reported(loading: Loading) -> None:
    """The warning names the variable with the wrong value. In the command `monarch`, the library
    does not warn, because the command reports the error itself."""
    hint = "Set it to the absolute path of a configuration file."
    for name in ("config", "site_config"):
        assert loading.load({name: "/none/c.yaml"}) == OFF
        assert loading.steps() == (
            f"warning: MONARCH_{name.upper()} names a file that cannot be found: /none/c.yaml;"
            f" {hint}, passed on"
        )
        assert loading.load({name: "/none/c.yaml"}, "monarch") == OFF
        assert loading.steps() == "passed on"


@pytest.mark.parametrize("is_site", [False, True])
def test_a_process_without_room_for_the_segments_says_so(loading: Loading, is_site: bool) -> None:
    """If a process cannot map all segments of the session, the library warns. The warning does not
    propose to start another daemon, because that would not help."""
    loading.serve(has_clients=False)
    variables = {"site_config" if is_site else "config": loading.config}
    assert loading.load(variables) == WAITING
    assert loading.steps() == (
        "autostart CONFIG, warning: this process cannot map the segments of the daemon for CONFIG;"
        " Raise the limits on its address space (ulimit -v) and on mappings (vm.max_map_count).,"
        " passed on"
    )
