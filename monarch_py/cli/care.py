"""doctor, verify, clear."""

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from monarch_py.cli.options import as_json, checked, config_option, optional_config_option
from monarch_py.client import Client
from monarch_py.doctor import Finding, examine
from monarch_py.session import SessionDir
from monarch_py.verify import clear_tiers, verify_copies

__all__ = ["COMMANDS"]

MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "problem": "[red]problem[/]"}


@click.command()
@optional_config_option
@as_json
def doctor(config_file: Path | None, as_json: bool) -> None:
    """Say what works here, what does not, and how to mend it.  Exits with 1 on a problem."""
    findings = examine(config_file)
    if as_json:
        click.echo(json.dumps([finding.as_dict() for finding in findings], indent=2))
    else:
        _print_findings(findings)
    sys.exit(1 if any(finding.level == "problem" for finding in findings) else 0)


def _print_findings(findings: list[Finding]) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for finding in findings:
        mend = f"\n[dim]-> {finding.mend}[/]" if finding.mend else ""
        table.add_row(MARKS[finding.level], finding.what, finding.found + mend)
    Console().print(table)


@click.command()
@config_option
@click.option("--source", "against_source", is_flag=True, help="Read the source files too.")
@as_json
def verify(config_file: Path, against_source: bool, as_json: bool) -> None:
    """Check the copies against their checksums; exits with 1 if any was damaged.

    Damaged copies are dropped and made anew when they are read.
    """
    config = checked(config_file)
    result = verify_copies(config, against_source=against_source)
    if as_json:
        click.echo(json.dumps(result.as_dict(), indent=2))
    else:
        for path in result.damaged:
            click.echo(f"damaged, dropped: {path}")
        for path in result.outdated:
            click.echo(f"not what the source has: {path}")
        click.echo(
            f"{result.checked} copies checked, {len(result.damaged)} damaged, "
            f"{len(result.outdated)} outdated"
        )
    sys.exit(1 if result.damaged or result.outdated else 0)


@click.command()
@config_option
def clear(config_file: Path) -> None:
    """Remove all copies of this configuration's tiers; the source is not touched."""
    config = checked(config_file)
    client = Client(SessionDir.of(config.file))
    if client.runs():
        dropped = client.ask("clear")["dropped"]
        client.wait_until_dropped()
        click.echo(f"{dropped} copies dropped")
    else:
        click.echo(f"{clear_tiers(config)} copies removed")


COMMANDS = [doctor, verify, clear]
