"""The commands simulate and calibrate."""

import json
import signal
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from monarch_py.cli.options import as_json, checked, config_option, examples, refuse_input
from monarch_py.cli.screen import print_table, show
from monarch_py.errors import ConfigError, MonarchError
from monarch_py.util.spelling import hint
from monarch_py.yaml_files.keys import named_paths

COLUMNS = ("policy", "total", "first", "later", "waited", "ready", "local", "remote", "PFS")
# If the total time of a policy is at least HOURS_FROM_S [s], the table shows times in hours. So a
# time in seconds has at most five digits before the decimal point.
HOURS_FROM_S = 100_000.0


def _scenario_file(given: str) -> Path:
    """Returns the path of a scenario's file. Raises ConfigError if there is no such scenario.

    given : the path, or the name of a scenario that comes with Monarch
    """
    from monarch_py.simulator.keys import shipped_scenarios

    shipped = shipped_scenarios()
    path = shipped.get(given, Path(given))
    if not path.exists():
        use = hint(given, shipped, f"give a file, or one of {', '.join(sorted(shipped))}")
        raise ConfigError(f"unknown scenario {given!r}; {use}")
    return path


@click.command(
    short_help="Simulate a training job under several policies.",
    epilog=examples(
        "monarch simulate --list",
        "monarch simulate mine.yaml -p naive -p first-fit --plot mine.png",
    ),
)
@click.argument("scenario", required=False)
@click.option(
    "-p", "--policy", "policies", multiple=True, help="Simulate only this policy; may be repeated."
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    help="Save a picture of the times, and of where the bytes come from, to this file.",
)
@click.option("--list", "lists", is_flag=True, help="List the policies and the scenarios.")
@as_json
def simulate(
    scenario: str | None,
    policies: tuple[str, ...],
    *,
    plot: Path | None,
    lists: bool,
    as_json: bool,
) -> None:
    """Simulate a training job under several policies.

    SCENARIO is a YAML file, or the name of one that comes with Monarch.
    """
    from monarch_py.policies.named import NAMES
    from monarch_py.simulator.comparison import compare
    from monarch_py.simulator.keys import load_scenario
    from monarch_py.simulator.plot import can_draw, draw
    from monarch_py.simulator.result import to_document

    if lists:
        _list()
        return
    if scenario is None:
        raise click.UsageError(
            "no scenario is named; `monarch simulate --list` shows those that come with Monarch,"
            " and `monarch calibrate -c tiers.yaml -o mine.yaml` writes one for this machine"
        )
    file = _scenario_file(scenario)
    loaded = load_scenario(file, NAMES)
    if plot is not None:
        refuse_input("--plot", plot, [file, *named_paths(loaded)])
        can_draw(plot)
    results = compare(loaded, policies or loaded.policies, tell=_tell)
    document = to_document(loaded.name, loaded.assumptions, results)
    if plot is not None:
        draw(document, plot)
    if as_json:
        json.dump(document, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        _show(document, loaded.nodes)


def _tell(policy: str) -> None:
    """If standard error is a terminal, shows which policy is simulated now, because large scenarios
    take minutes. Each call replaces the line of the previous call. If `policy` is "", the call only
    removes the line."""
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{f'simulating {policy} ...' if policy else ''}", nl=False, err=True)


def _list() -> None:
    from monarch_py.policies.named import DAEMON, SUMMARIES
    from monarch_py.simulator.keys import load_scenario, shipped_scenarios

    daemon = {name: f"{SUMMARIES[name]} (On {where}.)" for name, where in DAEMON.items()}
    others = {name: text for name, text in SUMMARIES.items() if name not in DAEMON}
    scenarios = {name: load_scenario(path).name for name, path in shipped_scenarios().items()}
    _print_named("Policies: used by the daemon today", daemon)
    _print_named("Other policies", others)
    _print_named("Scenarios", scenarios)


def _print_named(title: str, texts: dict[str, str]) -> None:
    show(Text(title, style="bold"))
    table = Table.grid(padding=(0, 2))
    for name, text in texts.items():
        table.add_row(f"  {name}", text)
    show(table)
    click.echo()


def _show(document: dict[str, Any], nodes: int) -> None:
    rows, missing = [], []
    for policy, result in document["policies"].items():
        if "unsupported" in result:
            reason = result["unsupported"].removeprefix(f"{policy}: ")
            missing.append(f"{policy} cannot run this scenario: {reason}")
        else:
            rows.append((policy, result))
    if rows:
        in_hours = max(result["total_seconds"] for _, result in rows) >= HOURS_FROM_S
        show(f"{document['scenario']} (times in {'hours' if in_hours else 'seconds'})")
        unit = 3600.0 if in_hours else 1.0
        print_table("", COLUMNS, [[policy, *_row(result, unit)] for policy, result in rows])
    for line in (*_daemons(document["policies"], nodes), *missing, *document["assumptions"]):
        show(Text(line, style="dim"))


def _daemons(policies: Collection[str], nodes: int) -> list[str]:
    """Returns one line of text, in a list. The line says which of the simulated policies the daemon
    uses on this number of nodes. If the daemon uses none of them, returns an empty list."""
    from monarch_py.policies.named import DAEMON

    own = [n for n, where in DAEMON.items() if (where == "one node") == (nodes == 1)]
    here = [f"{name} on {DAEMON[name]}" for name in own if name in policies]
    return [f"The daemon today: {', '.join(here)}."] if here else []


def _row(result: dict[str, Any], unit: float) -> list[str]:
    """Returns the cells of a policy's row in the table.

    unit : the length of the unit in which times are shown [s]: 1 or 3600
    """
    epochs, share = result["epoch_seconds"], result["share"]
    later = sum(epochs[1:]) / len(epochs[1:]) if epochs[1:] else None
    return [
        _number(result["total_seconds"] / unit),
        _number(epochs[0] / unit),
        "-" if later is None else _number(later / unit),
        _number(result["stall_seconds"] / unit),
        f"{result['ready_ratio']:.0%}",
        *(f"{share[place]:.0%}" for place in ("local", "remote", "pfs")),
    ]


def _number(value: float) -> str:
    """Returns the number as text. Small numbers have more digits after the decimal point: numbers
    below 10 have three, and numbers of at least 1000 have none."""
    if value >= 1000:
        return f"{value:,.0f}"
    places = 3 if value < 10 else 2 if value < 100 else 1
    return f"{value:.{places}f}"


@click.command(
    short_help="Measure tiers and source, for `monarch simulate`.",
    epilog=examples("monarch calibrate -c tiers.yaml -o mine.yaml"),
)
@config_option
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write the scenario to this file."
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def calibrate(config_file: Path, output: Path | None, *, force: bool) -> None:
    """Measure this machine's tiers and source, and write a scenario for `monarch simulate`."""
    from monarch_py.commands import calibrate as measuring

    config = checked(config_file)
    if output is not None and not output.parent.is_dir():
        raise ConfigError(f"{output}: the directory {output.parent} does not exist; create it")
    if output is not None:
        refuse_input("-o", output, named_paths(config))
    if output is not None and output.exists() and not force:
        raise ConfigError(
            f"{output} exists already, and may hold lines that you have filled in; name another"
            " file, or give --force to overwrite it"
        )
    # SIGTERM raises SystemExit, so that the measurement removes its test files from the tiers even
    # if the job is cancelled.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    measured = measuring.calibrate(config, lambda what: click.echo(f"measuring {what}", err=True))
    text = measuring.scenario_text(config, measured)
    if output is None:
        click.echo(text, nl=False)
    else:
        try:
            output.write_text(text)
        except OSError as error:
            raise MonarchError(f"{output} cannot be written: {error}; name another file") from None
        click.echo(
            f"wrote {output}; before you simulate it, fill in the lines that have a question mark"
        )
