"""A Slurm for one test, on the machines of support/machines.py.

slurmctld and munged run on the first machine, and a slurmd runs on every machine. All of them run
in the foreground and end with the context.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from support.machines import Machines
from support.session import wait_until

__all__ = ["SCRIPTS", "Slurm", "why_no_slurm"]

# Monarch's scripts for Slurm.
SCRIPTS = Path(__file__).resolve().parents[2] / "packaging" / "slurm"

PROGRAMS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge"}

CONFIGURATION = """\
ClusterName=monarch
SlurmctldHost={first}({address})
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={directory}/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
TmpFS={directory}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
KillWait=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1
{more}
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
"""


def _tool(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def why_no_slurm() -> str | None:
    """Returns a sentence that says what is missing on this machine, or None if Slurm can be
    started."""
    for name, package in PROGRAMS.items():
        if _tool(name) is None:
            return f"{name} is missing: install {package}"
    return None


class Slurm:
    """Slurm on all of `machines`.

    directory : the directory for the state and the logs, which this class creates
    more : further lines of slurm.conf
    """

    def __init__(self, machines: Machines, directory: Path, more: str = "") -> None:
        self._machines, self._directory, self._more = machines, directory, more
        self._configuration = directory / "slurm.conf"
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Slurm:
        self._directory.mkdir()
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.run("scancel", "--full", "--partition=all")
            wait_until(lambda: not self.run("squeue", "--noheader").stdout, what="no more jobs")
        finally:
            self._end()

    def _start(self) -> None:
        names, nodes = self._machines.names, self._machines.nodes
        lines = [
            f"NodeName={name} NodeAddr={nodes.address(i)} CPUs=8 RealMemory=500 State=UNKNOWN"
            for i, name in enumerate(names)
        ]
        text = CONFIGURATION.format(
            first=names[0],
            address=nodes.address(0),
            directory=self._directory,
            more=self._more,
            nodes="\n".join(lines),
        )
        self._configuration.write_text(text)
        (self._directory / "state").mkdir()
        for name in names:
            (self._directory / f"spool-{name}").mkdir()
        key = self._directory / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files = {"key-file": key, "socket": self._directory / "munge.sock"}
        files |= {f"{name}-file": self._directory / f"munge.{name}" for name in ("pid", "seed")}
        words = [f"--{name}={file}" for name, file in files.items()]
        log = f"--log-file={self._directory / 'munge.log'}"
        self._run_forever(0, "munged", "--foreground", "--force", "--num-threads=2", log, *words)
        wait_until((self._directory / "munge.sock").exists, what="munged")
        self._run_forever(0, "slurmctld", "-D", "-c", "-f", str(self._configuration))
        for i, name in enumerate(names):
            self._run_forever(i, "slurmd", "-D", "-f", str(self._configuration), "-N", name)
        wait_until(self._are_idle, what="idle nodes in Slurm", every=0.3)

    def _run_forever(self, machine: int, name: str, *words: str) -> None:
        tool = _tool(name)
        assert tool is not None
        self._started.append(
            subprocess.Popen(
                self._machines.command(machine, [tool, *words]),
                env=self.env(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )

    def _are_idle(self) -> bool:
        for process in self._started:
            assert process.poll() is None, f"{process.args!r} has ended"
        idle = self.run("sinfo", "--noheader", "--states=idle", "--format=%D").stdout.strip()
        return idle == str(len(self._machines.names))

    def _end(self) -> None:
        for process in reversed(self._started):
            process.terminate()
        for process in reversed(self._started):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def env(self, base: Mapping[str, str]) -> dict[str, str]:
        left_out = ("MONARCH_", "PMI", "SLURM")
        kept = {k: v for k, v in base.items() if not k.startswith(left_out)}
        return {**kept, "SLURM_CONF": str(self._configuration)}

    def run(self, *words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs one of Slurm's commands on the first machine.

        env : the command's environment, in place of this process's environment
        """
        return self.on(0, *words, **env)

    def on(self, machine: int, *words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs a command on one of the machines."""
        return self._machines.run(machine, *words, env=env or self.env(os.environ))

    def exit_code(self, job: str) -> str:
        """Returns the exit status and signal of a job that has ended, in Slurm's notation."""
        said = self.run("scontrol", "show", "job", job).stdout
        return said.partition("ExitCode=")[2].split()[0]

    def wait_gone(self, job: str) -> None:
        """Waits until a job has ended, including its epilog."""
        wait_until(
            lambda: job not in self.run("squeue", "--noheader", "--format=%A").stdout.split(),
            timeout=60,
            what=f"the end of job {job}",
            every=0.5,
        )
