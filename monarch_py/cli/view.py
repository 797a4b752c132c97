"""The command status."""

import json
import socket
import sys
from pathlib import Path
from typing import Any

import click

from monarch_py.cli.options import as_json, examples, served_config_option
from monarch_py.cli.screen import print_table, show
from monarch_py.ipc.connection import DaemonConnection, shortages, troubles
from monarch_py.ipc.session import SessionDir
from monarch_py.report.summary import exchanged, opened, read_from_source, since, unused
from monarch_py.util.units import format_size


def _tiers(report: dict[str, Any]) -> None:
    tiers = [(tier["mount_point"], tier) for tier in report["tiers"]]
    if (staging := report["staging"]) is not None:
        tiers.append((f"{staging['mount_point']} (staging)", staging))
    rows = [
        [
            name,
            "" if tier["usable"] else "unused",
            format_size(tier["quota_bytes"]),
            format_size(tier["used_bytes"]),
            _share(tier["used_bytes"], tier["quota_bytes"]),
            _files(tier),
        ]
        for name, tier in tiers
    ]
    print_table("Tiers", ["mount point", "state", "quota", "used", "full", "copies"], rows, left=2)


def _files(tier: dict[str, Any]) -> str:
    """Returns the number of copies in a tier as text. If another configuration has left copies in
    the tier's directory, the text contains their number too."""
    foreign = tier.get("foreign", 0)
    return f"{tier['files']} ({foreign} of other sources)" if foreign else str(tier["files"])


def _sources(report: dict[str, Any]) -> None:
    rows = []
    for source in report["sources"]:
        left = dict(source["bypass"])
        if source["scan_errors"]:
            left["unreadable"] = source["scan_errors"]
        bypass = ", ".join(f"{n} {why.replace('_', ' ')}" for why, n in left.items())
        rows.append(
            [
                source["path"],
                "" if source["scanned"] else "being scanned",
                bypass,
                source["files"],
                format_size(source["bytes"]),
                source["present"],
                _share(source["present"], source["files"]),
                source["filling"] + source["wanted"] or "",
            ]
        )
    columns = ["source", "state", "left to the source", "files", "size"]
    print_table("Sources", [*columns, "with copy", "share", "to come"], rows, left=3)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def _plans(report: dict[str, Any]) -> None:
    rows = [
        [plan["file"], plan["state"], plan["epoch"], plan["position"]] for plan in report["plans"]
    ]
    print_table("Plans", ["plan", "state", "epoch", "accesses"], rows, left=2)
    for plan in report["plans"]:
        if plan["why"]:
            show(f"{plan['file']}: {plan['why']}")


def _print_status(report: dict[str, Any]) -> None:
    state = "serving"
    if report["switched_off"]:
        state = "switched off by an administrator or by your `switch_file`"
    show(
        f"Daemon {report['pid']} (version {report['version']}): {state} for"
        f" {report['uptime_seconds']:.0f} s, {report['pending']} fills pending"
    )
    click.echo()
    _tiers(report)
    for trouble in (*troubles(report), *shortages(report)):
        show(trouble)
    click.echo()
    _sources(report)
    click.echo()
    if report["plans"]:
        _plans(report)
        click.echo()
    run = since(None, report)
    for label, texts in (
        ("Opens", [opened(run["totals"])]),
        ("Source", [read_from_source(run["totals"])]),
        ("Nodes", exchanged(run)),
        ("Ahead", unused(report)),
    ):
        for text in texts:
            show(f"{label}: {text}")


def _print_all(nodes: list[dict[str, Any]]) -> None:
    rows = []
    for node in nodes:
        report = node["status"]
        # A daemon that was started without other nodes has an empty name.
        row: list[Any] = [node["rank"], node["name"] or socket.gethostname()]
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
    columns = ["rank", "node", "state", "quota", "used", "files", "with copy", "to come"]
    print_table("Nodes", columns, rows, left=3)


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
    click.echo()
    if not cells:
        click.echo("No file is open.")
        return
    columns = ["file", "served by", "command", "process", "descriptor"]
    print_table("Open files", columns, cells, left=3)


@click.command(
    short_help="Show tiers, sources and how many reads Monarch has saved.",
    epilog=examples("monarch status", "monarch status --json"),
)
@served_config_option
@as_json
@click.option(
    "--open", "show_open", is_flag=True, help="Show who has which file open, and what serves it."
)
@click.option(
    "--history",
    "show_history",
    is_flag=True,
    help="With --json: add the fields that `monarch report` needs, as `run --json` does.",
)
@click.option(
    "--all", "show_all", is_flag=True, help="Show all nodes whose daemons have joined this one."
)
def status(
    config_file: Path, *, as_json: bool, show_open: bool, show_history: bool, show_all: bool
) -> None:
    """Show tiers, sources and how many reads Monarch has saved.

    With --all, exits with 1 if a node does not answer.
    """
    connection = DaemonConnection(SessionDir.of(config_file))
    if show_history and not as_json:
        raise click.UsageError("--history has no table; give --json too")
    if show_all:
        if show_open or show_history:
            only = "--open" if show_open else "--history"
            raise click.UsageError(f"{only} can show only this node; leave out --all")
        found = connection.ask("all")
        if as_json:
            click.echo(json.dumps(found, indent=2))
        else:
            _print_all(found["nodes"])
        sys.exit(0 if all(node["answers"] for node in found["nodes"]) else 1)
    report = connection.ask("status")
    if show_open:
        report.update(connection.ask("open"))
    if show_history:
        from monarch_py.commands.record import record

        report.update(record(connection, report))
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    _print_status(report)
    if show_open:
        _print_open(report["open"])
