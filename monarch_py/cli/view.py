"""status."""

import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from monarch_py.cli.options import as_json, config_option
from monarch_py.client import Client
from monarch_py.session import SessionDir
from monarch_py.units import format_size

__all__ = ["COMMANDS"]


def _table(title: str, columns: list[str], rows: list[list[Any]], left: int = 1) -> Table:
    """`left` columns of text, the others of numbers."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    return table


def _tiers(report: dict[str, Any]) -> Table:
    rows = [
        [
            tier["mount_point"],
            "" if tier["usable"] else tier["why"],
            format_size(tier["quota_bytes"]),
            format_size(tier["used_bytes"]),
            tier["files"],
        ]
        for tier in report["tiers"]
    ]
    return _table("Tiers", ["mount point", "", "quota", "used", "files"], rows, left=2)


def _sources(report: dict[str, Any]) -> Table:
    rows = []
    for source in report["sources"]:
        bypass = ", ".join(f"{n} {why.replace('_', ' ')}" for why, n in source["bypass"].items())
        rows.append(
            [
                source["path"],
                "scanned" if source["scanned"] else "being scanned",
                bypass,
                source["files"],
                format_size(source["bytes"]),
                source["present"],
                source["filling"] + source["wanted"],
            ]
        )
    columns = ["source", "", "left to the source", "files", "size", "present", "filling"]
    return _table("Sources", columns, rows, left=3)


def _plans(report: dict[str, Any]) -> Table:
    rows = [
        [
            plan["file"],
            plan["state"],
            plan["why"],
            _number(plan["epoch"]),
            _number(plan["position"]),
        ]
        for plan in report["plans"]
    ]
    return _table("Plans", ["plan", "", "why", "epoch", "accesses"], rows, left=3)


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _print_status(report: dict[str, Any]) -> None:
    console = Console()
    totals = report["totals"]
    state = "switched off by an administrator" if report["switched_off"] else "serving"
    console.print(
        f"Daemon {report['pid']} (version {report['version']}): {state} for "
        f"{report['uptime_seconds']:.0f} s, {report['pending']} fills pending"
    )
    console.print(_tiers(report))
    console.print(_sources(report))
    if report["plans"]:
        console.print(_plans(report))
    console.print(
        f"Opens {totals['opens']}: {totals['hits']} from copies "
        f"({format_size(totals['bytes_from_tier'])}), {totals['misses']} from the source "
        f"({format_size(totals['bytes_from_source'])}). "
        f"Fills read {format_size(totals['source_bytes_read_by_fills'])} from the source."
    )


def _print_all(nodes: list[dict[str, Any]]) -> None:
    rows = []
    for node in nodes:
        report = node["status"]
        row: list[Any] = [node["rank"], node["name"]]
        if report is None:
            rows.append([*row, node["why"], "", "", "", "", ""])
            continue
        tiers, sources = report["tiers"], report["sources"]
        state = "switched off" if report["switched_off"] else "serving"
        if any(plan["state"] == "dropped" for plan in report["plans"]):
            state += ", a plan dropped"
        used = sum(tier["used_bytes"] for tier in tiers)
        quota = sum(tier["quota_bytes"] for tier in tiers)
        counts = [sum(s[name] for s in sources) for name in ("files", "present")]
        filling = sum(s["filling"] + s["wanted"] for s in sources)
        rows.append([*row, state, format_size(quota), format_size(used), *counts, filling])
    columns = ["rank", "node", "", "quota", "used", "files", "present", "filling"]
    Console().print(_table("Nodes", columns, rows, left=3))


def _print_open(rows: list[dict[str, Any]]) -> None:
    cells = [
        [
            r["path"],
            r["served_by"],
            r["command"],
            r["pid"],
            "mapped" if r["fd"] is None else r["fd"],
        ]
        for r in rows
    ]
    columns = ["file", "served by", "command", "process", "descriptor"]
    Console().print(_table("Open files", columns, cells, left=3))


@click.command()
@config_option
@as_json
@click.option("--open", "show_open", is_flag=True, help="Who has which file open, served by what.")
@click.option("--all", "show_all", is_flag=True, help="All nodes whose daemons know of this one.")
def status(config_file: Path, as_json: bool, show_open: bool, show_all: bool) -> None:
    """Show tiers, sources and what was gained so far.

    With --all it exits with 1 if a node does not answer.
    """
    client = Client(SessionDir.of(config_file))
    if show_all:
        if show_open:
            raise click.UsageError("--open is of one node: leave --all away, on the node meant")
        found = client.ask("all")
        if as_json:
            click.echo(json.dumps(found, indent=2))
        else:
            _print_all(found["nodes"])
        sys.exit(0 if all(node["answers"] for node in found["nodes"]) else 1)
    report = client.ask("status")
    if show_open:
        report.update(client.ask("open"))
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    _print_status(report)
    if show_open:
        _print_open(report["open"])


COMMANDS = [status]
