"""The command report."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from monarch_py.cli.options import examples, refuse_input
from monarch_py.errors import MonarchError
from monarch_py.util.units import format_size, parse_rate


def _rate(_context: Any, _parameter: Any, value: str | None) -> float | None:
    try:
        return None if value is None else parse_rate(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


run_argument: Callable[[Any], Any] = click.argument(
    "run_file", metavar="RUN.JSON", type=click.Path(path_type=Path, allow_dash=True)
)
epochs_option: Callable[[Any], Any] = click.option(
    "--epochs",
    type=click.IntRange(1, 1000),
    help="Number of epochs of the run.  [default: from its plan; without a plan, the number of"
    " opens divided by the number of files]",
)
compute_option: Callable[[Any], Any] = click.option(
    "--compute",
    callback=_rate,
    metavar="RATE",
    help="Rate at which the training reads if nothing delays it, such as 300MiB/s.  [default:"
    " measured]",
)


@click.command(
    short_help="Make a page of a run: what happened, and what to change.",
    epilog=examples("monarch report run.json -o report.html"),
)
@run_argument
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="Write the page to this file.",
)
@epochs_option
@compute_option
def report(run_file: Path, output: Path, epochs: int | None, compute: float | None) -> None:
    """Make a page of a run: throughput, hit ratio, stalls, files, and what to change.

    The page is one HTML file that needs no network. RUN.JSON is the output of `monarch run --json`,
    or of `monarch status --json --history`; - is standard input.
    """
    from monarch_py.report.advice import advise
    from monarch_py.report.page import check_packages, page
    from monarch_py.report.recorded import load

    standard = Path("/dev/stdin") if run_file == Path("-") else run_file
    refuse_input("-o", output, [standard])
    run = load(run_file)
    check_packages()
    text = page(run, advise(run, epochs=epochs, compute=compute), epochs)
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MonarchError(
            f"{output}: cannot be written ({error.strerror}); name another file"
        ) from None
    click.echo(f"wrote {output} ({format_size(output.stat().st_size)})")
