"""The commands run, start, serve and stop."""

import json
import socket
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from monarch_py.cli.messages import tell, warn
from monarch_py.cli.options import (
    config_option,
    examples,
    export_sources,
    force_option,
    refuse_input,
    served_config_option,
    source_option,
    to_serve,
)
from monarch_py.cluster.collective import listed
from monarch_py.commands.run import (
    Outcome,
    keep_daemon,
    leave_to_others,
    listed_jobs,
    run_job,
    seen_others,
    why_unusable,
)
from monarch_py.commands.sources import OTHERS_SETTINGS, add_sources, settings_differ
from monarch_py.commands.switches import is_disabled, switches
from monarch_py.config.schema import Config
from monarch_py.daemon.starting import ignore_the_jobs, refuse_few_addresses, wait_for
from monarch_py.errors import MonarchError, NoDaemonError, SessionError
from monarch_py.ipc.connection import (
    HAS_CHANGED,
    DaemonConnection,
    catalog_trouble,
    shortages,
    troubles,
)
from monarch_py.ipc.jobs import Jobs
from monarch_py.ipc.session import SessionDir, holder_of, served_configurations
from monarch_py.report.summary import since, summary
from monarch_py.util.launcher import Launch, launched
from monarch_py.util.processes import Identity
from monarch_py.yaml_files.keys import named_paths

if TYPE_CHECKING:
    from monarch_py.cluster.nodes import Node

# How long [s] `stop` waits for the daemon to end. A daemon that must first remove many copies needs
# several seconds.
STOP_LIMIT_S = 60.0


@click.command(
    short_help="Run a command with its dataset served from the tiers.",
    context_settings={"allow_interspersed_args": False},
    epilog=examples(
        "monarch run -c tiers.yaml python train.py --epochs 90",
        "monarch run -c tiers.yaml --json run.json python train.py",
    ),
)
@config_option
@source_option
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write a report to this file."
)
@click.option("-q", "--quiet", is_flag=True, help="Print no summary on standard error.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    config_file: Path,
    sources: tuple[Path, ...],
    json_file: Path | None,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND with its dataset served from the tiers, and exit with the status of COMMAND.

    Options of `monarch run` go before COMMAND. Everything after COMMAND is passed to it.
    """
    config = to_serve(config_file, sources)
    if json_file is not None:
        refuse_input("--json", json_file, named_paths(config))
        json_file = _writable(json_file)
    _tell_switches(config)
    outcome = why_unusable(command[0])
    if outcome is not None:
        tell(outcome.problem)
        quiet = True
    else:
        outcome = run_job(config_file, command, config, is_recorded=json_file is not None)
    if json_file is not None:
        try:
            text = json.dumps(_job_report(outcome), indent=2)
            json_file.write_text(text + "\n")
        except OSError as error:
            tell(f"--json {json_file}: the report could not be written ({error.strerror})")
    if not quiet:
        if outcome.report is not None and (trouble := catalog_trouble(outcome.report)):
            tell(trouble)
        _tell_summary(outcome)
    sys.exit(outcome.exit_status)


def _writable(json_file: Path) -> Path | None:
    """Returns `json_file` if the file can be written. Otherwise tells the user, and returns None.
    Call this function before the job's command starts, so that the user learns of the problem
    before a job that may run for days."""
    try:
        if not json_file.is_fifo():  # opening a FIFO would wait for its reader
            json_file.open("a").close()
    except OSError as error:
        tell(f"--json {json_file}: cannot be written ({error.strerror}); there will be no report")
        return None
    return json_file


def _tell_switches(config: Config) -> None:
    for finding in switches(config):
        tell(f"{finding.found}; {finding.hint}")


def _tell_summary(outcome: Outcome) -> None:
    if outcome.report is None:
        if outcome.problem:
            tell(
                "no daemon served this run, so Monarch gained nothing; the reason is printed above"
            )
        else:
            tell(f"cannot tell what this run gained: {outcome.lost}")
        return
    if is_disabled():
        return  # `_tell_switches` has already told the user that Monarch is switched off
    lines = summary(outcome.report, since(outcome.before, outcome.report))
    # Remove "monarch: " from the first line, because `tell` adds it again.
    tell("\n".join(lines).removeprefix("monarch: "))


def _job_report(outcome: Outcome) -> dict[str, Any]:
    problem = outcome.problem or outcome.lost
    extra = {"exit_status": outcome.exit_status, "problem": problem}
    if outcome.report is None:
        return extra
    return {**outcome.report, "run": since(outcome.before, outcome.report), **extra}


alone_option = click.option(
    "--alone",
    is_flag=True,
    help="Start only this process's daemon, even if mpiexec or srun has started several processes.",
)


def _with_others(alone: bool) -> Launch | None:
    launch = None if alone else launched()
    return launch if launch is not None and launch.size > 1 else None


def _tell(node: "Node", config_file: Path) -> None:
    """Tells the user which daemons of a cluster were started. On ranks other than 0, does nothing,
    so that the user gets the message only one time."""
    if node.rank:
        return
    for warning in node.warnings:
        warn(warning)
    count, ran = len(node.names), len(node.names) - len(node.started)
    if not ran:
        click.echo(f"{count} daemons serve {config_file}, on {listed(node.names)}")
    elif not node.started:
        click.echo(f"{count} daemons already serve {config_file}, on {listed(node.names)}")
    else:
        click.echo(
            f"{ran} of {count} daemons already served {config_file}; the others were started"
            f" again, on {listed(node.started)}"
        )


@click.command(
    short_help="Start a daemon that stays until `monarch stop`.",
    epilog=examples(
        "monarch start -c tiers.yaml",
        "mpiexec -ppn 1 monarch start -c tiers.yaml     # a cluster: one daemon per node",
    ),
)
@config_option
@source_option
@alone_option
def start(config_file: Path, sources: tuple[Path, ...], alone: bool) -> None:
    """Start a daemon that stays until `monarch stop`.

    If a daemon serves already, the command only adds the sources that this daemon lacks.
    """
    if (launch := _with_others(alone)) is not None:
        from monarch_py.cluster.nodes import bring_up

        export_sources(sources)
        node = bring_up(config_file, launch)
        node.detach()
        Jobs(SessionDir.of(config_file)).note()
        _tell(node, config_file)
        return
    config = to_serve(config_file, sources)
    _tell_switches(config)
    connection, process = DaemonConnection(SessionDir.of(config.file)), keep_daemon(config_file)
    if process is None:
        _tell_serving(connection, config_file, config)
        return
    click.echo(f"the daemon serves {config.file} (process {process.pid})")
    report = connection.ask("status")
    for trouble in (*troubles(report), *shortages(report)):
        tell(trouble)


def _tell_serving(connection: DaemonConnection, config_file: Path, config: Config) -> None:
    """Tells the user that a daemon runs already, and adds the missing sources to this daemon."""
    serving = connection.ask("where")
    click.echo(f"a daemon serves this configuration already (process {serving['pid']})")
    for path in add_sources(connection, config.sources):
        click.echo(f"source added: {path}")
    if not serving["is_current"]:
        warn(HAS_CHANGED.format(config_file))
    elif settings_differ(connection, config):
        warn(OTHERS_SETTINGS.format(config_file))


@click.command(
    short_help="Run the daemon in the foreground (Slurm, containers).",
    epilog=examples(
        "monarch serve -c tiers.yaml &",
        "srun --overlap --ntasks-per-node=1 monarch serve -c tiers.yaml &    # one daemon per node",
    ),
)
@config_option
@source_option
@alone_option
def serve(config_file: Path, sources: tuple[Path, ...], alone: bool) -> None:
    """Run the daemon in the foreground (a Slurm step, a container)."""
    ignore_the_jobs()
    if (launch := _with_others(alone)) is None:
        refuse_few_addresses()  # before the import below, which itself needs much address space
        from monarch_py.daemon import lifecycle

        to_serve(config_file, sources)
        lifecycle.serve(config_file)
        lifecycle.end_process()
    from monarch_py.cluster.nodes import bring_up

    export_sources(sources)
    node = bring_up(config_file, launch)
    _tell(node, config_file)
    if not node.started:
        raise SessionError("all daemons run already; stop them with `monarch stop` first")
    # If `process` is None, another command has started this node's daemon. That command waits for
    # the daemon's end.
    if node.process is not None:
        wait_for(node.process, SessionDir.of(config_file))


def _asked_to_stop(session: SessionDir) -> Identity:
    """Asks the daemon to stop, and returns the identity of the daemon's process. If no daemon runs,
    raises NoDaemonError. The message then names the configurations of the user's other daemons."""
    try:
        return Identity(**DaemonConnection(session).ask("stop"))
    except NoDaemonError:
        if (holder := holder_of(session.lock)) is not None:
            raise NoDaemonError(f"the daemon ({holder}) is starting or ending; try again") from None
        text = "no daemon serves this configuration, so there is nothing to stop"
        if session.control.exists():
            text += "; `monarch sweep` removes what a killed daemon has left on this node"
        if others := ", ".join(map(str, served_configurations())):
            text += f"; your daemons serve {others}"
        raise NoDaemonError(text) from None


@click.command(
    short_help="Stop the daemon; jobs go on with the source.",
    epilog=examples("monarch stop", "monarch stop -c tiers.yaml"),
)
@served_config_option
@force_option
def stop(config_file: Path, force: bool) -> None:
    """Stop the daemon. Running jobs go on, and read from the source.

    In a job of a batch system, the daemon stays if other jobs use it too. It then ends by itself
    after the last of these jobs.
    """
    session = SessionDir.of(config_file)
    Jobs(session).leave()
    with nullcontext(list[str]()) if force else seen_others(session) as others:
        if others:
            leave_to_others(session)
            click.echo(
                f"the daemon stays, because {listed_jobs(others)} too; to end it anyway, run"
                " `monarch stop --force`"
            )
        else:
            _stop(session)


def _stop(session: SessionDir) -> None:
    try:
        daemon = _asked_to_stop(session)
    except SessionError as error:
        if _with_others(alone=False) is None:
            raise
        raise SessionError(f"{socket.gethostname()}: {error}") from error
    if not daemon.wait(STOP_LIMIT_S):
        raise MonarchError(
            f"the daemon (process {daemon.pid}) was asked to stop, but has not ended within"
            f" {STOP_LIMIT_S:.0f} s: it may still be removing copies, or the file system of a tier"
            f" does not answer; see {session.log}"
        )
    click.echo(f"the daemon has stopped (process {daemon.pid})")
