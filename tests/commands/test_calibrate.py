"""`monarch calibrate`: its curves are plausible, its scenario loads, and it leaves no files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli.conftest import Monarch, monarch  # noqa: F401 (a fixture)
from support.session import wait_until

from monarch_py.commands import calibrate as measuring
from monarch_py.commands.calibrate import THREADS, Calibration, calibrate, scenario_text
from monarch_py.config.load import load_config
from monarch_py.config.schema import Config
from monarch_py.errors import ConfigError, TierError
from monarch_py.simulator.comparison import compare
from monarch_py.simulator.keys import load_scenario
from monarch_py.simulator.result import Result
from monarch_py.simulator.scenario import Scenario
from monarch_py.util.units import MIB


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a source of 24 files of 64 KiB, and with a configuration whose tier has 16
    MiB."""
    for name in ("source/deep", "tier"):
        (tmp_path / name).mkdir(parents=True)
    for number in range(24):
        folder = "source/deep" if number % 2 else "source"
        (tmp_path / folder / f"{number:02d}").write_bytes(os.urandom(64 << 10))
    write_config(tmp_path)
    return tmp_path


def write_config(place: Path, *, quota: str = "16MiB", source: str = "") -> Config:
    file = place / "tiers.yaml"
    file.write_text(
        f"sources:\n  - {source or place / 'source'}\n"
        f"hierarchy:\n  - {{mount_point: {place / 'tier'}, max_storage_quota: {quota}}}\n"
    )
    return load_config(file)


def loaded(place: Path, config: Config, measured: Calibration) -> Scenario:
    file = place / "mine.yaml"
    file.write_text(scenario_text(config, measured))
    return load_scenario(file)


def left(place: Path) -> list[Path]:
    return list((place / "tier").iterdir())


def test_every_curve_is_one_and_nothing_is_left(place: Path) -> None:
    told: list[str] = []
    measured = calibrate(load_config(place / "tiers.yaml"), told.append)
    assert told == [f"source {place / 'source'}", f"tier {place / 'tier'}"]
    for curve in (measured.source, *measured.read, *measured.write):
        assert tuple(curve) == THREADS
        # The lower bound is less than the rate of a floppy disk, and the upper bound is more than
        # the rate of any memory [bytes/s].
        assert all(1e4 < rate < 1e12 for rate in curve.values())
    assert left(place) == []


def test_the_rate_is_that_of_all_threads(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate that `monarch calibrate` reports for 4 threads is the sum of the four threads'
    rates. In this test, each read of a file takes 50 ms, however many threads read at the same
    time."""

    def slow(path: Path, _: float, most: int = 0) -> int:
        time.sleep(0.05)
        return path.stat().st_size

    monkeypatch.setattr(measuring, "_read", slow)
    monkeypatch.setattr(measuring, "_measure_tier", lambda *_: ({1: 1.0}, {1: 1.0}))
    alone = 64 * 1024 / 0.05

    def is_sum() -> bool:
        source = calibrate(load_config(place / "tiers.yaml")).source
        assert source[1] <= alone
        assert source[4] <= 4 * alone
        return source[4] > 1.5 * source[1]

    # On a busy machine, the four threads may get too little processor time in a measurement.
    wait_until(is_sum, timeout=60, what="a rate of four threads")


def test_one_thread_reads_as_many_files_as_the_bytes_to_read_take(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: dict[int, int] = {}

    def count(path: Path, _: float, most: int) -> int:
        read[most] = read.get(most, 0) + path.stat().st_size
        return path.stat().st_size

    enough = 3 * 64 * 1024
    monkeypatch.setattr(measuring, "MOST_BYTES", enough)
    monkeypatch.setattr(measuring, "_read", count)
    monkeypatch.setattr(measuring, "_measure_tier", lambda *_: ({1: 1.0}, {1: 1.0}))
    calibrate(load_config(place / "tiers.yaml"))
    assert read[enough] == enough


def test_the_scenario_loads_and_can_be_simulated(place: Path) -> None:
    config = load_config(place / "tiers.yaml")
    scenario = loaded(place, config, calibrate(config))
    assert scenario.dataset.files == 24
    assert scenario.sizes().sum() == 24 * 64 * 1024
    staging, tier = scenario.classes
    assert (tier.capacity_bytes, staging.capacity_bytes) == (16 * MIB, 64 * MIB)
    results = compare(scenario, ["perfect", "first-fit"])
    perfect, first_fit = results["perfect"], results["first-fit"]
    assert isinstance(perfect, Result)
    assert isinstance(first_fit, Result)
    assert perfect.total_seconds <= first_fit.total_seconds
    # The whole dataset fits into the tier, so only the first epoch reads the source.
    assert first_fit.share["pfs"] == pytest.approx(1 / scenario.epochs, abs=0.1)


def test_slow_rates_do_not_become_zero(place: Path) -> None:
    config = load_config(place / "tiers.yaml")
    slow = {1: 0.4, 2: 1234.0, 4: 5.25 * MIB}
    scenario = loaded(place, config, Calibration(slow, (slow,), (slow,), 1))
    assert scenario.pfs.total(1) == pytest.approx(5.25 * MIB, rel=0.02)
    assert [scenario.classes[1].read.points[n] for n in (1, 2)] == [1.0, 1234.0]


def test_what_was_not_measured_is_marked(place: Path) -> None:
    config = load_config(place / "tiers.yaml")
    rates = {1: 1e8}
    text = scenario_text(config, Calibration(rates, (rates,), (rates,), 300 * MIB))
    marked = set(re.findall(r"^ *(\w+):.*# \?", text, re.M))
    assert marked == {
        "epochs",
        "batch_per_rank",
        "drop_last",
        "compute",
        "preprocess",
        "network",
    }
    small = scenario_text(config, Calibration(rates, (rates,), (rates,), 70))
    assert "# ? measured on only 70 bytes, too few for a rate" in small


def test_more_threads_than_files_are_not_measured(place: Path) -> None:
    for file in list((place / "source").rglob("*"))[3:]:
        if file.is_file():
            file.unlink()
    files = [f for f in (place / "source").rglob("*") if f.is_file()]
    assert 1 <= len(files) < 4
    measured = calibrate(load_config(place / "tiers.yaml"))
    assert tuple(measured.source) == tuple(n for n in THREADS if n <= len(files))


def test_no_more_is_written_than_the_quota(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    real = measuring._read

    def look(path: Path, until: float, **limits: int) -> int:
        nonlocal most
        if path.is_relative_to(place / "tier"):
            most = max(most, sum(f.stat().st_size for f in path.parent.iterdir()))
        return real(path, until)

    monkeypatch.setattr(measuring, "_read", look)
    calibrate(write_config(place, quota="4MiB"))
    assert most == 4 * MIB


def test_a_path_with_a_dollar_is_found_again(place: Path) -> None:
    (place / "source").rename(place / "a$b")
    config = write_config(place, source=f"{place}/a$$b")
    rates = {1: 1e8}
    scenario = loaded(place, config, Calibration(rates, (rates,), (rates,), MIB))
    assert scenario.dataset.scan == place / "a$b"


def test_an_empty_source_is_said(place: Path) -> None:
    (place / "empty").mkdir()
    config = write_config(place, source=str(place / "empty"))
    with pytest.raises(ConfigError, match=r"tiers.yaml: source .*/empty has no file"):
        calibrate(config)
    assert left(place) == []


def test_a_source_that_fails_is_said(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path, _: float, most: int = 0) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(measuring, "_read", broken)
    with pytest.raises(ConfigError, match=r"the source cannot be read: .*; check its permissions"):
        calibrate(load_config(place / "tiers.yaml"))


def test_a_tier_that_goes_is_said(place: Path) -> None:
    config = load_config(place / "tiers.yaml")
    (place / "tier").rmdir()
    with pytest.raises(TierError, match=r"tier .*/tier cannot be measured: .*; check its mount"):
        calibrate(config)


def test_a_full_tier_is_said_and_left_as_it_was(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(place / "tiers.yaml")
    real = os.statvfs

    def full(path: str) -> os.statvfs_result:
        values = list(real(path))
        values[4] = 0  # f_bavail
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", full)
    with pytest.raises(
        TierError, match=r"has 0 MiB free, and measuring it takes 32 MiB; make room"
    ):
        calibrate(config)
    assert left(place) == []


def test_the_command_writes_the_file(place: Path, monarch: Monarch) -> None:  # noqa: F811
    write_config(place, quota="4MiB")
    config = str(place / "tiers.yaml")
    done = monarch("calibrate", "-c", config, "-o", str(place / "mine.yaml"))
    assert done.returncode == 0, done.stderr
    assert load_scenario(place / "mine.yaml").name == "this machine"
    (place / "mine.yaml").write_text("# filled in\n")
    done = monarch("calibrate", "-c", config, "-o", str(place / "mine.yaml"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"monarch: {place / 'mine.yaml'} exists already, and may hold lines that you have filled"
        " in; name another file, or give --force to overwrite it\n"
    )
    assert (place / "mine.yaml").read_text() == "# filled in\n"
    done = monarch("calibrate", "-c", config, "-o", str(place / "mine.yaml"), "--force")
    assert done.returncode == 0, done.stderr
    assert load_scenario(place / "mine.yaml").name == "this machine"
    done = monarch("calibrate", "-c", config, "-o", str(place / "no" / "mine.yaml"))
    assert done.returncode == 2
    assert done.stderr.endswith(f"the directory {place / 'no'} does not exist; create it\n")
    assert "measuring" not in done.stderr


# Runs `monarch calibrate` with an artificially slow measurement of the tier, so that a test has
# time to cancel the command.
SLOW = """
import time
from monarch_py import cli
from monarch_py.commands import calibrate

def write(path, piece, size, until):
    path.write_bytes(piece)
    while time.monotonic() < until:
        time.sleep(0.01)
    return len(piece)

calibrate._write, calibrate.MOST_SECONDS = write, 0.4
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_is_cancelled_leaves_nothing(place: Path, number: signal.Signals) -> None:
    words = [sys.executable, "-c", SLOW, "calibrate", "-c", str(place / "tiers.yaml")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        wait_until(lambda: any(file.is_file() for file in (place / "tier").rglob("*")))
        run.send_signal(number)
        out, err = run.communicate(timeout=30)
    assert run.returncode == 128 + number
    assert out == ""
    assert "Traceback" not in err
    assert left(place) == []


def test_of_a_large_file_a_part_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "MOST_BYTES", 4 << 20)
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1 << 30)
    until = time.monotonic() + 60
    assert measuring._read(tmp_path / "large", until, most=2 << 20) == 2 << 20
    curve, read = measuring._measure_source([(tmp_path / "large", 1 << 30)])
    assert (list(curve), read) == ([1], 4 << 20)
