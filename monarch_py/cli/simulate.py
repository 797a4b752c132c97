"""simulate, calibrate: what any policy would make of a job, on this machine or another."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import click

from monarch_py.cli.options import as_json, checked, config_option
from monarch_py.errors import ConfigError, MonarchError

__all__ = ["COMMANDS"]

COLUMNS = (
    "total [s]",
    "epoch 1 [s]",
    "later [s]",
    "waited [s]",
    "ready",
    "local",
    "remote",
    "PFS",
)


def _scenario_file(given: str) -> Path:
    """A file, or the name of one that comes with Monarch; ConfigError for neither."""
    from monarch_py.simulator import shipped_scenarios

    shipped = shipped_scenarios()
    path = shipped.get(given, Path(given))
    if not path.exists():
        names = ", ".join(sorted(shipped))
        raise ConfigError(f"there is no scenario {given!r}; give a file, or one of {names}")
    return path


@click.command()
@click.argument("scenario", required=False)
@click.option("-p", "--policy", "policies", multiple=True, help="Only these; may be repeated.")
@click.option(
    "--as-published", is_flag=True, help="As the authors of NoPFS simulate it, oddities included."
)
@click.option(
    "--without", multiple=True, help="Of that, an oddity that is put right; may be repeated."
)
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Draw the times and where bytes came from."
)
@click.option("--list", "lists", is_flag=True, help="The policies, and the scenarios there are.")
@as_json
def simulate(
    scenario: str | None,
    policies: tuple[str, ...],
    *,
    as_published: bool,
    without: tuple[str, ...],
    plot: Path | None,
    lists: bool,
    as_json: bool,
) -> None:
    """Simulate a training job under several policies.

    SCENARIO is a YAML file, or the name of one that comes with Monarch.

    \b
    monarch simulate nopfs_fig8_1
    monarch simulate mine.yaml -p naive -p first-fit --plot mine.png
    """
    from monarch_py.simulator import load_scenario
    from monarch_py.simulator.comparison import compare, names
    from monarch_py.simulator.plot import can_draw, draw
    from monarch_py.simulator.result import to_document

    if lists:
        _list()
        return
    if scenario is None:
        raise click.UsageError("name a scenario, or give --list")
    known = names(as_published=as_published)
    loaded = load_scenario(_scenario_file(scenario), {*names(as_published=False), *known})
    # A scenario is for both simulators, of which the published one has fewer policies.
    chosen = policies or tuple(name for name in loaded.policies if name in known)
    if plot is not None:
        can_draw(plot)
    results = compare(loaded, chosen, as_published=as_published, without=without, tell=_tell)
    document = to_document(loaded.name, loaded.assumptions, results)
    if plot is not None:
        draw(document, plot)
    if as_json:
        json.dump(document, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _show(document)


def _tell(policy: str) -> None:
    """On a terminal, in a line that the next one replaces: large scenarios take minutes."""
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{f'simulating {policy} ...' if policy else ''}", nl=False, err=True)


def _list() -> None:
    from monarch_py.simulator import load_scenario, shipped_scenarios
    from monarch_py.simulator.comparison import names
    from monarch_py.simulator.published import Behaviour

    click.echo("policies: " + ", ".join(names(as_published=False)))
    click.echo("as published: " + ", ".join(names(as_published=True)))
    for behaviour in Behaviour:
        click.echo(f"  {behaviour.name.lower().replace('_', '-')}: {behaviour.value[0]}")
    for name, path in shipped_scenarios().items():
        click.echo(f"{name}: {load_scenario(path).name}")


def _show(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(document["scenario"]))
    table.add_column("policy", no_wrap=True)
    for column in COLUMNS:
        table.add_column(Text(column), justify="right", no_wrap=True)
    missing = []
    for policy, result in document["policies"].items():
        if "unsupported" in result:
            reason = result["unsupported"].removeprefix(f"{policy}: ")
            missing.append(f"{policy} cannot run here: {reason}")
        else:
            table.add_row(policy, *_row(result))
    console = Console()
    # A table that is too wide for its terminal is still whole when that is made wider.
    wide = console.options.update(max_width=1000)
    needed = Measurement.get(console, wide, table).maximum if table.row_count else 0
    console = Console(width=max(console.width, min(needed, 200)))
    if table.row_count:
        console.print(table)
    for line in (*missing, *document["assumptions"]):
        console.print(Text(line, style="dim"))


def _row(result: dict[str, Any]) -> list[str]:
    epochs, share = result["epoch_seconds"], result["share"]
    later = sum(epochs[1:]) / len(epochs[1:]) if epochs[1:] else None
    return [
        _seconds(result["total_seconds"]),
        _seconds(epochs[0]),
        "-" if later is None else _seconds(later),
        _seconds(result["stall_seconds"]),
        f"{result['ready_ratio']:.0%}",
        *(f"{share[place]:.0%}" for place in ("local", "remote", "pfs")),
    ]


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 1000 else f"{seconds:.4g}"


@click.command()
@config_option
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write it to a file.")
def calibrate(config_file: Path, output: Path | None) -> None:
    """Measure this machine's tiers and source, as a scenario for `monarch simulate`."""
    from monarch_py import calibrate as measuring

    config = checked(config_file)
    if output is not None and not output.parent.is_dir():
        raise ConfigError(f"{output}: there is no directory {output.parent}; make it")
    # A job that is cancelled leaves nothing in the tiers.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    measured = measuring.calibrate(config, lambda what: click.echo(f"measuring {what}", err=True))
    text = measuring.scenario_text(config, measured)
    if output is None:
        click.echo(text, nl=False)
    else:
        try:
            output.write_text(text)
        except OSError as error:
            raise MonarchError(f"{output} cannot be written: {error}; give another file") from None
        click.echo(f"{output}: change the lines with a question mark, then monarch simulate it")


COMMANDS = [simulate, calibrate]
