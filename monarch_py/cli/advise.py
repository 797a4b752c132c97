"""The commands of `monarch advise`."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from monarch_py.cli.options import as_json, examples
from monarch_py.cli.report import compute_option, epochs_option, run_argument
from monarch_py.cli.screen import print_table
from monarch_py.util.units import counted


@click.group(short_help="Say what a training job needs, and what would make it faster.")
def advise() -> None:
    """Say what a training job needs, and what would make it faster."""


def _seconds(_context: Any, _parameter: Any, value: str) -> float:
    from monarch_py.commands.advise import parse_seconds

    try:
        return parse_seconds(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@advise.command(epilog=examples("monarch advise workers train:dataset --batch 64 --step 50ms"))
@click.argument("dataset", metavar="MODULE:DATASET")
@click.option(
    "--batch", type=click.IntRange(1), required=True, help="Number of samples in a batch."
)
@click.option(
    "--step",
    callback=_seconds,
    required=True,
    help="How long one training step computes, such as 50ms.",
)
@click.option(
    "--most", type=click.IntRange(1), default=16, show_default=True, help="The most workers to try."
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.01),
    default=1.0,
    show_default=True,
    help="How long to measure each number of workers.",
)
@click.option("--collate", metavar="MODULE:FUNCTION", help="Function that makes a batch.")
@as_json
def workers(
    *,
    dataset: str,
    batch: int,
    step: float,
    most: int,
    seconds: float,
    collate: str | None,
    as_json: bool,
) -> None:
    """Find the smallest number of worker processes that make batches fast enough.

    MODULE:DATASET names a dataset, or a function that makes one. The command reads samples with 1,
    2, 3 and more workers, until more workers do not help. It then models the time that a worker
    needs for a sample. The time depends on the number of workers and on the sample's size, and
    consists of a time to wait for data and a time to compute.
    """
    from monarch_py.commands.advise import load_dataset, load_object, to_document
    from monarch_py.loaders.staged.measuring import advise as measure

    collate_fn = None if collate is None else load_object(collate, "--collate")
    found = measure(
        load_dataset(dataset), batch, step, most=most, seconds=seconds, collate_fn=collate_fn
    )
    document = to_document(found)
    if as_json:
        json.dump(document, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        _show(document)


def _show(document: dict[str, Any]) -> None:
    rows = [
        [
            str(row["workers"]),
            f"{row['batch_seconds'] * 1000:.2f}",
            f"{row['epoch_seconds']:.1f}",
        ]
        for row in document["foretold"]
    ]
    print_table("", ("workers", "ms per batch", "s per epoch"), rows)
    click.echo(f"Use {counted(document['workers'], 'worker')}.")
    if not document["is_enough"]:
        step = document["step_seconds"] * 1000
        click.echo(
            "More workers do not help. The training still waits for batches, because a step takes"
            f" only {step:g} ms."
        )


@advise.command(
    short_help="Say what would have made a run faster.",
    epilog=examples("monarch advise report run.json"),
)
@run_argument
@epochs_option
@compute_option
@as_json
def report(run_file: Path, *, epochs: int | None, compute: float | None, as_json: bool) -> None:
    """Say which changes would have made a run faster, with the simulator's estimate of each.

    RUN.JSON is the output of `monarch run --json`, or of `monarch status --json --history`; - is
    standard input.
    """
    from monarch_py.report.advice import WORTH, compared, percent, saved
    from monarch_py.report.advice import advise as estimate
    from monarch_py.report.recorded import load

    advice = estimate(load(run_file), epochs=epochs, compute=compute)
    if as_json:
        json.dump(advice.as_dict(), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
        return
    if advice.changes:
        print_table("", ("change", "time of the run", "saved"), saved(advice))
    else:
        click.echo(f"No simulated change would have saved {percent(WORTH)} of this run's time.")
    click.echo(f"{compared(advice)} Assumptions:")
    for text in advice.assumptions:
        click.echo(f"- {text}")
