"""Makes a test run in CI fail if a test is skipped because something is missing.

The plugin is active only with CI=true and as root, which is how .ci/run starts the tests. In other
runs, a skip only says what is missing.
"""

from __future__ import annotations

import os
import re

import pytest

# Skips that CI allows, because installing further software would not prevent them. Maps the reason
# of each skip (a regular expression) to why the skip is right.
ALLOWED = {
    r"the file system below the source refuses O_DIRECT itself": (
        "this depends on the machine's disk; without O_DIRECT there is nothing to compare"
    ),
    r"/dev/fuse is closed to all but root": (
        "without udev, users get no access to the device; root's mounts are still tested"
    ),
    r"the kernel does not say how long time slices are": (
        "kernels before Linux 6.12, and those without CONFIG_SCHED_DEBUG"
    ),
    r"can run no interpreter here, or cannot read this checkout": (
        "CI puts the checkout into a directory that other users may not enter"
    ),
}


def _is_strict() -> bool:
    return os.environ.get("CI") == "true" and os.geteuid() == 0


class _Skips:
    def __init__(self) -> None:
        self.refused: list[str] = []

    def note(self, nodeid: str, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(re.search(pattern, reason) for pattern in ALLOWED):
            self.refused.append(f"{nodeid}: {reason.removeprefix('Skipped: ')}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.note(report.nodeid, report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.note(report.nodeid, report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.refused:
            terminalreporter.section("skipped, which CI does not allow", red=True)
            for line in self.refused:
                terminalreporter.line(line)


def pytest_configure(config: pytest.Config) -> None:
    if _is_strict() and not config.pluginmanager.has_plugin("monarch-skips"):
        config.pluginmanager.register(_Skips(), "monarch-skips")
