"""Tests the output of `monarch metrics` in four forms: printed, written to a file, served on a Unix
socket, and scraped by a real Prometheus."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import stat
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import FILES, Factory
from cli.warming import NO_DAEMON
from prometheus_client.parser import text_string_to_metric_families
from support.session import Session, wait_until

from monarch_py.report.metrics import DASHBOARD

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def own_session(session_factory: Factory, source: Path) -> Session:
    session = session_factory(source, prefetch="eager").start()
    session.wait_all_present()
    return session


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, old_source: Path) -> Iterator[Session]:
    """One session for all tests that only query the daemon or read files."""
    with Session(tmp_path_factory.mktemp("looked_at"), old_source, prefetch="eager") as session:
        session.start().wait_all_present()
        yield session


def samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@contextmanager
def serving(session: Session, *words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        session.command("metrics", *words),
        env=session.env(preload=False),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("monarch: metrics on ")
            yield process
        finally:
            process.kill()


def test_what_is_printed_is_the_status(session: Session) -> None:
    source = session.source
    session.python("open(__import__('sys').argv[1]).read()", source / "a")
    found, report = samples(session.monarch("metrics").stdout), session.status()
    assert found["monarch_up", ()] == 1
    assert found["monarch_opens_total", (("result", "hit"),)] == report["totals"]["hits"] > 0
    assert found["monarch_filled_bytes_total", ()] == sum(FILES.values())
    tier = (("kind", report["tiers"][0]["kind"]), ("tier", "0"))
    assert found["monarch_tier_used_bytes", tier] == report["tiers"][0]["used_bytes"]
    assert found["monarch_source_present", (("source", "0"),)] == len(FILES)
    assert str(source) not in session.monarch("metrics").stdout


def test_a_file_is_written_whole_and_says_when_the_daemon_is_gone(
    own_session: Session, tmp_path: Path
) -> None:
    session, textfile = own_session, tmp_path / "monarch.prom"
    process = subprocess.Popen(
        session.command("metrics", "--textfile", str(textfile), "--every", "1"),
        env=session.env(preload=False),
    )
    try:
        wait_until(textfile.exists, what="the first file")
        assert samples(textfile.read_text())["monarch_up", ()] == 1
        session.stop()
        wait_until(lambda: samples(textfile.read_text()) == {("monarch_up", ()): 0}, what="the end")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    assert [path.name for path in tmp_path.iterdir() if "monarch.prom" in path.name] == [
        textfile.name
    ]


def test_a_socket_is_this_users_alone(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    with serving(session, "--socket", str(path)) as process:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(path))
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert (answer.status, samples(answer.read().decode())["monarch_up", ()]) == (200, 1)
        connection.close()
        second = session.monarch("metrics", "--socket", str(path))
        assert second.returncode != 0
        assert f"another process listens at {path}; name another path" in second.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    assert not path.exists()


def test_the_last_file_does_not_say_that_the_daemon_runs(session: Session, tmp_path: Path) -> None:
    textfile = tmp_path / "monarch.prom"
    with subprocess.Popen(
        session.command("metrics", "--textfile", str(textfile), "--every", "600"),
        env=session.env(preload=False),
    ) as process:
        wait_until(textfile.exists, what="the first file")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    assert samples(textfile.read_text()) == {("monarch_up", ()): 0}


def test_a_socket_that_cannot_be_made_is_one_sentence(session: Session, tmp_path: Path) -> None:
    for path in (tmp_path / "none" / "s", tmp_path / ("x" * 120)):
        done = session.monarch("metrics", "--socket", str(path))
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert f"{path}: cannot listen there (" in done.stderr


def test_a_listener_that_does_not_accept_keeps_its_socket(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen(0)
        status = 0
        while status == 0:
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            status = client.connect_ex(str(path))
        done = session.monarch("metrics", "--socket", str(path))
    assert f"another process listens at {path}; name another path" in done.stderr
    assert path.exists()


def test_one_way_at_a_time(session: Session, tmp_path: Path) -> None:
    both = session.monarch("metrics", "--port", "9999", "--socket", "s")
    assert (both.returncode, "give only one of" in both.stderr) == (2, True)
    taken = tmp_path / "file"
    taken.touch()
    refused = session.monarch("metrics", "--socket", str(taken))
    assert "exists and is not a socket; name another path" in refused.stderr
    assert taken.exists()


def test_without_a_daemon(session_factory: Factory, source: Path) -> None:
    done = session_factory(source).monarch("metrics")
    assert (done.returncode, done.stderr) == (3, NO_DAEMON)


# --- a real Prometheus --------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def query(port: int, expression: str) -> list[dict[str, Any]]:
    words = urllib.parse.urlencode({"query": expression})
    url = f"http://127.0.0.1:{port}/api/v1/query?{words}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        found = json.loads(answer.read())
    assert found["status"] == "success", found
    result: list[dict[str, Any]] = found["data"]["result"]
    return result


@contextmanager
def prometheus(directory: Path, target: int) -> Iterator[int]:
    """Runs a Prometheus that scrapes the port `target` of the loopback device. Yields the port on
    which Prometheus itself listens."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("the program prometheus is not installed (Debian: apt-get install prometheus)")
    port, config = free_port(), directory / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 200ms}\n"
        "scrape_configs:\n- job_name: monarch\n  static_configs:\n"
        f"  - targets: ['127.0.0.1:{target}']\n"
    )
    words = [
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--scrape.discovery-reload-interval=200ms",
    ]
    with subprocess.Popen([program, *words], stderr=subprocess.DEVNULL) as process:
        try:
            yield port
        finally:
            process.terminate()


def test_prometheus_scrapes_it_and_runs_every_query_of_the_dashboard(
    session: Session, tmp_path: Path
) -> None:
    target = free_port()
    with serving(session, "--port", str(target)), prometheus(tmp_path, target) as port:

        def is_scraped() -> bool:
            try:
                return [float(each["value"][1]) for each in query(port, "monarch_up")] == [1]
            except OSError:
                return False

        wait_until(is_scraped, timeout=60, what="the first scrape")
        before = session.totals()["hits"]
        session.python("open(__import__('sys').argv[1]).read()", session.source / "a")
        hits = f'monarch_opens_total{{result="hit"}} > {before}'
        wait_until(lambda: bool(query(port, hits)), timeout=60, what="the hit")
        panels = json.loads(session.monarch("metrics", "--dashboard").stdout)["panels"]
        for panel in panels:
            for each in panel["targets"]:
                asked = each["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
                wait_until(partial(query, port, asked), what=f"an answer to {asked}")


def test_the_dashboard_asks_for_metrics_that_there_are(session: Session) -> None:
    known = {name for name, _ in samples(session.monarch("metrics").stdout)}
    text = DASHBOARD.read_text()
    asked = {
        word for word in text.replace("(", " ").replace("{", " ").split() if "monarch_" in word
    }
    assert {word.strip('",') for word in asked} <= known
