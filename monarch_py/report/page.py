"""The page of `monarch report`: one HTML file that needs no network and no script."""

import os
from collections.abc import Sequence
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

from monarch_py.errors import MonarchError
from monarch_py.report.advice import WORTH, Advice, compared, percent, saved
from monarch_py.report.figures import figures_of
from monarch_py.report.recorded import Recorded
from monarch_py.report.summary import opened, read_from_source
from monarch_py.util.units import counted, format_size

TEMPLATE = Path(__file__).parent / "page.html"
NEEDED = ("jinja2", "matplotlib")


def check_packages() -> None:
    """Raises MonarchError if a package that the page needs is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        packages = Path(__file__).parents[2]
        ours = f"pip install {' '.join(missing)}"
        theirs = f"ask the person who installed Monarch to add {'them' if missing[1:] else 'it'}"
        hint = ours if os.access(packages, os.W_OK) else f"{theirs} in {packages}"
        raise MonarchError(f"the page needs {' and '.join(missing)}; {hint}")


def page(run: Recorded, advice: Advice, epochs: int | None = None) -> str:
    """Returns the page as HTML. `check_packages` must be called before.

    epochs : the number of epochs of the run; None if it is not known
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    report = run.report
    return environment.from_string(TEMPLATE.read_text()).render(
        title=f"Monarch: {', '.join(source.path for source in report.sources)}",
        facts=_facts(run),
        advice=advice,
        changes=saved(advice),
        compared=compared(advice),
        worth=percent(WORTH),
        figures=figures_of(run, epochs),
        tiers=_tiers(run),
        sources=_sources(run),
        version=report.version,
        prefetch=report.prefetch,
        scan=report.scan,
    )


def _facts(run: Recorded) -> list[str]:
    totals = {name: round(value) for name, value in run.totals.items()}
    status = run.report.exit_status
    end = "" if status is None else f", and the command ended with status {status}"
    facts = [
        f"The run took {timedelta(seconds=round(run.length))}{end}.",
        f"{opened(totals)}.",
        f"Source: {read_from_source(totals)}.",
    ]
    if run.nodes > 1:
        came = format_size(totals["bytes_from_peers"])
        facts.append(f"{came} came from other nodes; there were {run.nodes} nodes in all.")
    if others := run.report.other_jobs:
        jobs = counted(others, "other job")
        facts.append(f"The daemon also served {jobs}; their reads are included here.")
    return facts


def _tiers(run: Recorded) -> tuple[Sequence[str], list[list[str]]]:
    report = run.report
    places = [(tier.mount_point, tier) for tier in report.tiers]
    if report.staging is not None:
        places.append((f"{report.staging.mount_point} (staging)", report.staging))
    rows = [
        [
            name if tier.usable else f"{name} (unused)",
            tier.kind,
            format_size(tier.quota_bytes),
            format_size(tier.used_bytes),
            f"{tier.files:,}",
        ]
        for name, tier in places
    ]
    return ("tier", "kind", "quota", "used", "copies"), rows


def _sources(run: Recorded) -> tuple[Sequence[str], list[list[str]]]:
    rows = [
        [
            source.path,
            f"{source.files:,}",
            format_size(source.bytes),
            f"{source.present:,}",
            format_size(source.present_bytes),
            ", ".join(f"{n:,} {why.replace('_', ' ')}" for why, n in source.bypass.items()),
        ]
        for source in run.report.sources
    ]
    return ("source", "files", "size", "with a copy", "their size", "left to the source"), rows
