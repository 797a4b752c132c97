"""Turns a daemon's report into Prometheus metrics. No label contains a path."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from monarch_py.report.rates import Report

# A dashboard of these metrics, for import into Grafana.
DASHBOARD = Path(__file__).parent / "dashboard.json"

# The metrics that are made from the counters in the report's `totals`. A row contains the metric's
# name, its help text, its label, and a mapping from each value of the label to a counter. In the
# row of a metric without a label, the label and the mapping's only key are "".
TOTALS: Sequence[tuple[str, str, str, Mapping[str, str]]] = (
    (
        "monarch_opens",
        "Opens of dataset files: a hit opened a copy, a miss opened the source file",
        "result",
        {"hit": "hits", "miss": "misses"},
    ),
    (
        "monarch_opened_bytes",
        "Total size of the dataset files opened, as copies in a tier or at the source",
        "origin",
        {"tier": "bytes_from_tier", "source": "bytes_from_source"},
    ),
    (
        "monarch_source_read_bytes",
        "Bytes read at the sources, by the daemon's fills and by programs themselves",
        "reader",
        {"fills": "source_bytes_read_by_fills", "programs": "source_bytes_read_by_programs"},
    ),
    ("monarch_peer_read_bytes", "Bytes that came from other nodes", "", {"": "bytes_from_peers"}),
    ("monarch_fills", "Copies finished", "", {"": "fills"}),
    ("monarch_filled_bytes", "Sizes of the copies finished", "", {"": "filled_bytes"}),
    ("monarch_fill_failures", "Files that could not be copied", "", {"": "fill_failures"}),
    ("monarch_waits", "Reads that waited for a part of a copy", "", {"": "waits"}),
    ("monarch_wait_seconds", "Time that reads have waited", "", {"": "wait_seconds"}),
    ("monarch_fallbacks", "Waits that ended with a read of the source", "", {"": "fallbacks"}),
    ("monarch_promotions", "Open files that were switched to a new copy", "", {"": "promotions"}),
    (
        "monarch_metadata_hits",
        "Metadata calls that the catalog answered",
        "",
        {"": "metadata_hits"},
    ),
)
# The gauges for each tier (TIER) and for each source (SOURCE): field in the report -> help text of
# the metric.
TIER = {
    "quota_bytes": "The most bytes that copies may take",
    "used_bytes": "Bytes that copies take",
    "free_bytes": "Bytes that new copies can take now",
    "files": "Complete copies",
}
SOURCE = {
    "files": "Files found so far",
    "bytes": "Sizes of the files found so far",
    "present": "Files with a complete copy",
    "present_bytes": "Sizes of the files with a complete copy",
    "filling": "Files being copied",
    "wanted": "Files that wait for their copy",
}


def metrics_of(report: Report) -> Iterator[Metric]:
    """Yields the metrics of a report (docs/status.md)."""
    yield _gauge(
        "monarch_uptime_seconds", "Time since the daemon's start", report["uptime_seconds"]
    )
    yield _gauge("monarch_pending_files", "Files wanted or being filled", report["pending"])
    yield _gauge("monarch_switched_off", "1 if a switch file exists", report["switched_off"])
    yield _gauge("monarch_catalog_entries", "Files that are known", report["catalog_entries"])
    for name, text, label, fields in TOTALS:
        counter = CounterMetricFamily(name, text, labels=[label] if label else None)
        for value, field in fields.items():
            counter.add_metric([value] if label else [], report["totals"][field])
        yield counter
    if report["nodes"]:
        served = CounterMetricFamily("monarch_served_bytes", "Bytes given to other nodes")
        served.add_metric([], report["nodes"]["served_bytes"])
        yield served
    yield from _tiers(report["tiers"])
    yield from _sources(report["sources"])


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))


def _tiers(tiers: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    usable = GaugeMetricFamily(
        "monarch_tier_usable", "1 if the tier can take new copies", labels=["tier"]
    )
    for number, tier in enumerate(tiers):
        usable.add_metric([str(number)], tier["usable"])
    yield usable
    for field, text in TIER.items():
        gauge = GaugeMetricFamily(f"monarch_tier_{field}", text, labels=["tier", "kind"])
        for number, tier in enumerate(tiers):
            if field in tier:
                gauge.add_metric([str(number), tier.get("kind", "")], tier[field])
        yield gauge
    evicted = CounterMetricFamily("monarch_tier_evicted", "Copies evicted", labels=["tier"])
    for number, tier in enumerate(tiers):
        evicted.add_metric([str(number)], tier.get("evicted", 0))
    yield evicted


def _sources(sources: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    for field, text in SOURCE.items():
        gauge = GaugeMetricFamily(f"monarch_source_{field}", text, labels=["source"])
        for number, source in enumerate(sources):
            gauge.add_metric([str(number)], source[field])
        yield gauge
    left = GaugeMetricFamily(
        "monarch_source_bypass", "Files left to the source", labels=["source", "reason"]
    )
    for number, source in enumerate(sources):
        for reason, files in source["bypass"].items():
            left.add_metric([str(number), reason], files)
    yield left


class _DaemonCollector(Collector):
    """Asks the daemon for a report each time Prometheus reads the metrics. If the daemon does not
    answer, the only metric is `monarch_up`, with the value 0."""

    def __init__(self, ask: Callable[[], Report | None]) -> None:
        self._ask = ask

    def describe(self) -> Iterator[Metric]:
        """Yields nothing. When a collector is registered, the registry calls this method to learn
        the names of the collector's metrics. Without this method, some registries would call
        `collect`, which asks the daemon."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        report = self._ask()
        yield _gauge("monarch_up", "1 if the daemon answers", report is not None)
        if report is not None:
            yield from metrics_of(report)


def registry_of(ask: Callable[[], Report | None]) -> CollectorRegistry:
    """Returns a registry for prometheus_client's exporters.

    ask : a function that returns the daemon's present report, or None if the daemon does not answer
    """
    registry = CollectorRegistry()
    registry.register(_DaemonCollector(ask))
    return registry
