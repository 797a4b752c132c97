"""run, start, serve, stop."""

import json
import socket
import sys
from pathlib import Path
from typing import Any

import click

from monarch_py.bringup import Node, bring_up, listed
from monarch_py.cli.options import checked, config_option
from monarch_py.client import HAS_CHANGED, Client
from monarch_py.daemon.lifecycle import end_process, ignore_the_jobs, wait_for
from monarch_py.daemon.lifecycle import serve as serve_here
from monarch_py.errors import MonarchError, SessionError
from monarch_py.job import Outcome, keep_daemon, run_job
from monarch_py.launcher import Launch, launched
from monarch_py.processes import Identity
from monarch_py.session import SessionDir
from monarch_py.units import format_size

__all__ = ["COMMANDS"]

# For `stop`: many copies to remove take seconds [s].
STOP_LIMIT_S = 60.0


def _summary(outcome: Outcome) -> str:
    report = outcome.report
    if report is None:
        return "monarch: no daemon, no gain: " + (outcome.problem or "it ended before the command")
    totals = report["totals"]
    share = 100 * totals["hits"] / totals["opens"] if totals["opens"] else 0.0
    tiers = ", ".join(
        f"{tier['mount_point']}: {tier['files']} files, {format_size(tier['used_bytes'])}"
        for tier in report["tiers"]
    )
    return (
        f"monarch: {totals['opens']} opens of dataset files, {share:.1f} % from copies "
        f"({format_size(totals['bytes_from_tier'])}); "
        f"{format_size(totals['source_bytes_read_by_fills'])} read to fill; {tiers}"
    )


@click.command(context_settings={"ignore_unknown_options": True})
@config_option
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the report here.")
@click.option("-q", "--quiet", is_flag=True, help="No summary on standard error.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(config_file: Path, json_file: Path | None, quiet: bool, command: tuple[str, ...]) -> None:
    """Run COMMAND with its dataset served from the tiers; exits with its status.

    \b
    monarch run -c tiers.yaml -- python train.py
    """
    config = checked(config_file)
    outcome = run_job(config.file, command)
    if json_file is not None:
        try:
            text = json.dumps(_job_report(outcome), indent=2)
            json_file.write_text(text + "\n")
        except OSError as error:
            sys.stderr.write(f"monarch: the report was not written: {error}\n")
    if not quiet:
        sys.stderr.write(_summary(outcome) + "\n")
    sys.exit(outcome.exit_status)


def _job_report(outcome: Outcome) -> dict[str, Any]:
    extra = {"exit_status": outcome.exit_status, "problem": outcome.problem}
    return {**(outcome.report or {}), **extra}


alone_option = click.option(
    "--alone",
    is_flag=True,
    help="This process's daemon alone, also where mpiexec or srun has started several.",
)


def _with_others(alone: bool) -> Launch | None:
    launch = None if alone else launched()
    return launch if launch is not None and launch.size > 1 else None


def _tell(node: Node, config_file: Path) -> None:
    """Rank 0 speaks for all."""
    if node.rank:
        return
    for warning in node.warnings:
        sys.stderr.write(f"monarch: {warning}\n")
    count, ran = len(node.names), len(node.names) - len(node.started)
    if not ran:
        click.echo(f"{count} daemons serve {config_file}, on {listed(node.names)}")
    elif not node.started:
        click.echo(f"{count} daemons serve {config_file} already, on {listed(node.names)}")
    else:
        click.echo(
            f"{ran} of {count} daemons served {config_file} already; started again: those on"
            f" {listed(node.started)}"
        )


@click.command()
@config_option
@alone_option
def start(config_file: Path, alone: bool) -> None:
    """Start a daemon that stays until `monarch stop`.

    \b
    mpiexec -ppn 1 monarch start -c tiers.yaml     one on each node, which know of each other
    """
    if (launch := _with_others(alone)) is not None:
        node = bring_up(config_file, launch)
        node.detach()
        _tell(node, config_file)
        return
    config = checked(config_file)
    client, process = Client(SessionDir.of(config.file)), keep_daemon(config.file)
    if process is None:
        serving = client.ask("where")
        click.echo(f"a daemon serves this configuration already (process {serving['pid']})")
        if not serving["is_current"]:
            sys.stderr.write(f"monarch: {HAS_CHANGED.format(config_file)}\n")
        return
    click.echo(f"the daemon serves {config.file} (process {process.pid})")
    for tier in client.ask("status")["tiers"]:
        if not tier["usable"]:
            sys.stderr.write(f"monarch: {tier['why']}\n")


@click.command()
@config_option
@alone_option
def serve(config_file: Path, alone: bool) -> None:
    """Run the daemon in the foreground (a Slurm step, a container).

    \b
    srun --overlap --ntasks-per-node=1 monarch serve -c tiers.yaml &
    """
    ignore_the_jobs()
    if (launch := _with_others(alone)) is None:
        checked(config_file)
        serve_here(config_file)
        end_process()
    node = bring_up(config_file, launch)
    _tell(node, config_file)
    if not node.started:
        raise SessionError("stop the daemons that serve already, with monarch stop")
    if node.process is not None:  # else another step waits for it
        wait_for(node.process, SessionDir.of(config_file))


@click.command()
@config_option
def stop(config_file: Path) -> None:
    """Stop the daemon; running jobs go on, on the source."""
    session = SessionDir.of(config_file)
    try:
        daemon = Identity(**Client(session).ask("stop"))
    except SessionError as error:
        if _with_others(alone=False) is None:
            raise
        raise SessionError(f"{socket.gethostname()}: {error}") from error
    if not daemon.wait(STOP_LIMIT_S):
        raise MonarchError(
            f"process {daemon.pid} was asked to stop, and after {STOP_LIMIT_S:.0f} s is still"
            " removing copies or writing them out; look again with monarch status"
        )
    click.echo(f"stopped (process {daemon.pid})")


COMMANDS = [run, start, serve, stop]
