"""The commands doctor, verify, clear and sweep."""

import json
import sys
import textwrap
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import click
from rich.text import Text

from monarch_py.cli.messages import tell
from monarch_py.cli.options import (
    as_json,
    checked,
    config_option,
    examples,
    force_option,
    optional_config_option,
)
from monarch_py.cli.screen import console, show
from monarch_py.commands.doctor import examine
from monarch_py.commands.run import listed_jobs, seen_others
from monarch_py.commands.sweep import sweep as sweep_node
from monarch_py.commands.switches import Finding
from monarch_py.commands.verify import clear_tiers, tiers_out_of_use, verify_copies
from monarch_py.errors import SessionError, TierError
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import SessionDir
from monarch_py.util.quoting import quoted
from monarch_py.util.units import counted

COLOURS = {"ok": "green", "note": "dim", "warning": "yellow", "problem": "red"}
# The widths [characters] of the columns `level` and `what`. These are the lengths of the longest
# texts in the columns.
WIDTHS = (7, 15)
# The smallest width [characters] of the third column, even on a very narrow terminal.
LEAST_WIDTH = 20


@click.command(
    short_help="Check this machine and a configuration.",
    epilog=examples("monarch doctor", "monarch doctor -c tiers.yaml"),
)
@optional_config_option
@as_json
def doctor(config_file: Path | None, as_json: bool) -> None:
    """Check this machine and a configuration, and say what to do about each problem.

    Exits with 1 if there is a problem.
    """
    findings = []
    for finding in examine(config_file):
        findings.append(finding)
        # Print each finding immediately, because the next finding may take a while.
        if not as_json:
            _print_finding(finding)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    sys.exit(1 if any(finding.level == "problem" for finding in findings) else 0)


def _print_finding(finding: Finding) -> None:
    first, second = WIDTHS
    margin = f"\n{'':{first + second + 4}}"
    width = max(console().width - len(margin), LEAST_WIDTH)
    text = Text.assemble(
        (f"{finding.level:{first}}", COLOURS[finding.level]),
        f"  {finding.what:{second}}  ",
        margin.join(_folded(finding.found, width)),
    )
    if finding.hint:
        text.append(margin + margin.join(_folded(f"-> {finding.hint}", width)), "dim")
    show(text, is_folded=True)
    sys.stdout.flush()


def _folded(text: str, width: int) -> list[str]:
    """Breaks a text into lines of at most `width` characters. Does not break a path that is longer
    than a line, so that the user can copy the path."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


@click.command(
    short_help="Check the copies against their checksums.",
    epilog=examples("monarch verify -c tiers.yaml --source"),
)
@config_option
@click.option(
    "--source",
    "against_source",
    is_flag=True,
    help="Also read the source files, and find copies that differ from them.",
)
@as_json
def verify(config_file: Path, against_source: bool, as_json: bool) -> None:
    """Check the copies against their checksums.

    Damaged and outdated copies are dropped, and made again when their files are read. Exits with 1
    if there were such copies, and with 4 if a tier cannot be read.
    """
    config = checked(config_file, with_sources=against_source)
    result = verify_copies(config, against_source=against_source)
    if as_json:
        names = ("checked", "damaged", "outdated")
        click.echo(json.dumps({name: getattr(result, name) for name in names}, indent=2))
    else:
        for path in result.damaged:
            click.echo(f"dropped a damaged copy of {quoted(path)}")
        for path in result.outdated or []:
            click.echo(f"dropped an outdated copy of {quoted(path)}")
        outdated = "" if result.outdated is None else f", {len(result.outdated)} outdated"
        click.echo(f"{result.checked} copies checked, {len(result.damaged)} damaged{outdated}")
    _tell_out_of_use(result.out_of_use)
    sys.exit(1 if result.damaged or result.outdated else 0)


def _tell_out_of_use(sentences: list[str]) -> None:
    """Prints sentences about tiers that are out of use. If there is at least one sentence, ends the
    command with TierError's exit status."""
    for sentence in sentences:
        tell(sentence)
    if sentences:
        sys.exit(TierError.exit_status)


@click.command(
    short_help="Remove all copies from this configuration's tiers.",
    epilog=examples("monarch clear -c tiers.yaml"),
)
@config_option
@force_option
def clear(config_file: Path, force: bool) -> None:
    """Remove all copies from this configuration's tiers. The sources stay as they are.

    In a job of a batch system, the command keeps all copies if other jobs use the daemon. Exits
    with 4 if a tier cannot be read.
    """
    config = checked(config_file, with_sources=False)
    connection = DaemonConnection(SessionDir.of(config.file))
    if connection.runs():
        with nullcontext(list[str]()) if force else seen_others(connection.session) as others:
            if others:
                raise SessionError(
                    f"the copies stay, because {listed_jobs(others)} too; drop the copies of one"
                    " dataset with `monarch evict PATH`, or all with `monarch clear --force`"
                )
            dropped = connection.ask("clear")["dropped"]
        connection.wait_until_dropped()
        click.echo(f"{dropped} copies dropped")
        _tell_out_of_use([why for _, why in tiers_out_of_use(config, connection)])
    else:
        click.echo(f"{clear_tiers(config)} copies removed")


@click.command(
    short_help="Remove what your killed daemons left on this node.",
    epilog=examples("monarch sweep", "monarch sweep --stop"),
)
@click.option("--stop", is_flag=True, help="Also stop the daemons that run, and remove their logs.")
def sweep(stop: bool) -> None:
    """Remove what your killed daemons left on this node: shared memory, and copies in tiers.

    Persistent tiers keep their copies. What a running daemon uses is kept, unless --stop ends the
    daemon. A batch system's epilog can run `monarch sweep --stop` after a user's last job. Exits
    with 1 if something could not be removed.
    """
    swept = sweep_node(stop=stop)
    for problem in swept.problems:
        tell(problem)
    ended = f"{counted(swept.stopped, 'daemon')} stopped, " if stop else ""
    click.echo(
        f"{ended}{counted(swept.sessions, 'killed daemon')} found, {swept.copies} copies removed"
    )
    sys.exit(1 if swept.problems else 0)
