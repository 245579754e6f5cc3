"""Write the batch script of a job. No I/O.

The job's folder is on the disk that the login host and the nodes share, and is this user's alone. The client puts
``step.py`` and ``authorized_keys`` there before it submits. The script starts ``step.py serve`` once on each node:

- `node_file` of the node appears, whole, when the step can be connected to: JSON with ``host_key`` ("ssh-ed25519
  AAAA"), ``step`` ("4711.0"), ``user``, ``address`` (by which other nodes reach it), ``lease`` and ``notice`` (files).
- `relay` is the command that reaches it: its standard streams are an SSH connection.
- `LIMIT` appears when the time limit comes near: the step programs tell of a preemption in `SIGNAL_S`.
- `END` or ``end.NODE`` appears before a step is sent SIGTERM which shall end at once. Another SIGTERM is a preemption.

SCRIPT-1: each node has an srun of its own. One srun for all of them dies whole if a node fails while it starts.
SCRIPT-2: whatever users give is quoted, and cannot end its line. The lines of ``setup`` alone are shell.
SCRIPT-3: the batch shell outlives its signals, and ends when all steps have ended.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ...lazy_dataclass import dataclass
from .durations import text_of

STEP, KEYS, LIMIT, END, NODES = "step.py", "authorized_keys", "limit", "end", "nodes"
SIGNAL_S = 120.0  # before the time limit; Slurm may be up to a minute early (sbatch(1), --signal)
SHORT = 4  # a job that lasts less than so many times SIGNAL_S is told in the last part of so many

_SCRIPT = """\
#!/bin/bash
{setup}
cd {folder} || exit 1
umask 077
mkdir -p {nodes}
unset SLURM_EXPORT_ENV SRUN_EXPORT_ENV
trap ': > {limit}' USR1
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
  srun --nodelist="$node" --nodes=1 --ntasks=1 --overlap --mem=0 --cpu-bind=none --kill-on-bad-exit=0 \\
    ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} --export=ALL --input=none \\
    {python} {folder}/{step} serve {arguments} &
done
while [ -n "$(jobs -pr)" ]; do wait; done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The parts of a batch script. ``python``: the interpreter on the nodes, which needs the standard library alone."""

    folder: str  # absolute
    lease_s: float
    lifetime_s: float | None = None
    setup: Sequence[str] = ()
    python: str = "python3"

    def text(self) -> str:
        arguments = [self.folder, f"--lease={self.lease_s:g}"]
        if self.lifetime_s is not None:
            arguments.append(f"--lifetime={self.lifetime_s:g}")
        return _SCRIPT.format(
            setup="\n".join(self.setup),
            folder=shlex.quote(self.folder),
            python=shlex.quote(self.python),
            arguments=shlex.join(arguments),
            nodes=NODES,
            limit=LIMIT,
            step=STEP,
        )


def node_file(folder: str, node: str) -> str:
    """Return where the step on ``node`` says how it is reached."""
    return f"{folder}/{NODES}/{node}"


def relay(job: str, node: str, folder: str, *, python: str = "python3") -> tuple[str, ...]:
    """Return the command that reaches the step on a node. Without ``-u`` an SSH handshake hangs for good."""
    step = ("srun", "-u", "--quiet", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}")
    return (*step, "--mem=0", "--cpu-bind=none", "--export=ALL", python, f"{folder}/{STEP}", "relay", folder)


def signal_s(time_s: float | None) -> float:
    """Return how many seconds before its time limit the batch shell is told. None: the site's own limit."""
    return SIGNAL_S if time_s is None else min(SIGNAL_S, time_s / SHORT)


def own_arguments(*, name: str, count: int, comment: str, folder: str, time_s: float | None) -> list[str]:
    """Return the arguments of sbatch without which its job is no job of ours."""
    found = [
        "--parsable",
        f"--job-name={name}",
        f"--nodes={count}-{count}",
        "--ntasks-per-node=1",
        "--no-kill",
        "--no-requeue",
        f"--signal=B:USR1@{max(1, round(signal_s(time_s)))}",
        f"--comment={comment}",
        f"--output={folder}/job.out",
        "--open-mode=append",
        f"--chdir={folder}",
        "--export=ALL",
    ]
    if time_s is not None:
        found.append(f"--time={text_of(time_s)}")
    return found
