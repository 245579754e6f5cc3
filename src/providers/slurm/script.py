"""Generate the batch script of a job. No I/O.

The job's folder is on the disk that the login host and the nodes share, and only this user can access it. The client
puts the programs of `.step` and ``authorized_keys`` there before it submits the job. The script starts the step server
on each node. Files and commands:

- `node_file` of the node appears, complete, when the step accepts connections: JSON with ``host_key`` ("ssh-ed25519
  AAAA"), ``step`` ("4711.0"), ``user``, ``address`` (for other nodes), ``lease`` and ``notice`` (files).
- `relay` is the command that connects to the step: its standard streams carry an SSH connection.
- `LIMIT` is a file with the seconds until the time limit. It appears when the limit comes near.
- `WANTED` is a file with the number of wanted nodes, if the job has more nodes: only the first nodes get a step.
- `END` or ``end.NODE`` is a file that appears before SIGTERM is sent to a step that has to end at once. SIGTERM without
  this file means a preemption.

SCRIPT-1: each node has an srun of its own. One srun for all nodes would end completely if one node fails while it
starts. The batch shell's own node comes last: its step would take the processor from the sruns of all other nodes.
SCRIPT-2: the user's values are quoted, so that none of them can end its line. Only the lines of ``setup`` are shell
code.
SCRIPT-3: the batch shell survives signals, and ends when all steps have ended, whatever options ``setup`` has set, and
whatever processes it has left running.
SCRIPT-4: if a step was killed and could not remove its node's file, the batch shell removes the file.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from ...lazy_dataclass import dataclass
from .notation import MOST_NODES, text_of
from .step.programs import HERE

SERVER, RELAY = "step_server.py", "relay.py"
BATCH, KEYS, LIMIT, END, NODES, WANTED = "batch.sh", "authorized_keys", "limit", "end", "nodes", "wanted"
OUTPUT = "job.out"
# Default seconds between SIGTERM and SIGKILL of a step, for partitions without a GraceTime: Slurm's KillWait.
GRACE_S = 30.0
# Seconds of warning before the time limit; Slurm may send it up to a minute early (sbatch(1), --signal).
SIGNAL_S = 120.0
REFUSED_S = 2  # seconds; an ssh whose login is refused exits within this time
# A job with a time limit below SHORT * SIGNAL_S is warned when 1/SHORT of its time remains.
SHORT = 4

# The ssh command from the login host to a node. It never prompts, and detects a node that does not respond. Its ciphers
# have hardware support: large values take a fifth less time than with the cipher that OpenSSH prefers.
_CIPHERS = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,aes128-ctr,aes192-ctr,aes256-ctr"
SSH = (
    *("ssh", "-T", "-c", _CIPHERS, "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes", "-o", "ConnectTimeout=8"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=2"),
)
# srun options of a step that may use all of the job's processors and memory on a node, beside other steps.
_STEP = ("--nodes=1", "--ntasks=1", "--overlap", "--mem=0", "--cpu-bind=none", "--kill-on-bad-exit=0", "--export=ALL")
_SCRIPT = """\
#!/bin/bash
{setup}
set +eu
cd {folder} || exit 1
umask 077
mkdir -p {nodes}
unset SLURM_EXPORT_ENV SRUN_EXPORT_ENV
trap 'echo {signal_s:g} >{limit}.new && mv {limit}.new {limit}' USR1
nodes=() own=() steps=()
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n "$(cat {wanted} 2>/dev/null || echo {most})"); do
  if [ "$node" = "$SLURMD_NODENAME" ]; then own=("$node"); else nodes+=("$node"); fi
done
for node in "${{nodes[@]}}" "${{own[@]}}"; do
  {{
    trap : USR1
    srun --nodelist="$node" {step} --input=none ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} \\
      {python} -I -S {folder}/{server} {arguments} --batch-node="$SLURMD_NODENAME"
    [ $? -le 128 ] || rm -f {nodes}/"$node"
  }} &
  steps+=($!)
done
for step in "${{steps[@]}}"; do
  while kill -0 "$step" 2>/dev/null; do wait "$step"; done
done
true
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The parts of a batch script. ``python``: the interpreter on the nodes; it needs only the standard library."""

    folder: str  # absolute path
    lease_s: float
    lifetime_s: float | None = None
    time_s: float | None = None  # the job's time limit; None: the site's
    grace_s: float = GRACE_S
    setup: Sequence[str] = ()
    python: str = "python3"

    @property
    def arguments(self) -> list[str]:
        """Return the arguments with which the step server is started."""
        lifetime = [] if self.lifetime_s is None else [f"--lifetime={self.lifetime_s:g}"]
        return [self.folder, f"--lease={self.lease_s:g}", f"--grace={self.grace_s:g}", *lifetime]

    def step(self, job: str, node: str, cpus_per_task: str | None) -> list[str]:
        """Return the command that starts the step server on one node of a job, as the batch script does."""
        cpus = [f"--cpus-per-task={cpus_per_task}"] if cpus_per_task else []
        srun = ["srun", f"--jobid={job}", f"--nodelist={node}", *_STEP, "--input=none", *cpus]
        return [*srun, self.python, "-I", "-S", f"{self.folder}/{SERVER}", *self.arguments]

    def text(self) -> str:
        return _SCRIPT.format(
            setup="\n".join(self.setup),
            folder=shlex.quote(self.folder),
            python=shlex.quote(self.python),
            arguments=shlex.join(self.arguments),
            step=" ".join(_STEP),
            nodes=NODES,
            limit=LIMIT,
            wanted=WANTED,
            most=MOST_NODES,
            signal_s=signal_s(self.time_s),
            server=SERVER,
        )


def node_file(folder: str, node: str) -> str:
    """Return the file in which the step on ``node`` reports its address."""
    return f"{folder}/{NODES}/{node}"


def relay(job: str, node: str, folder: str, *, python: str = "python3", here: bool = False) -> tuple[str, ...]:
    """Return the command that connects to the step on a node.

    Each end of srun has a relay (a process that passes on the data), because Slurm would delay the last piece of a
    message above 1024 bytes by 40 ms. Without srun's ``-u``, an SSH handshake hangs forever.

    ``here``: the relay at the client's end runs on this computer. That relay is this package's own file, because nodes
    can write to the copy in the job's folder.
    """
    srun = ("srun", "-u", "--quiet", f"--jobid={job}", f"--nodelist={node}", *_STEP)
    far = near = (python, "-I", "-S", f"{folder}/{RELAY}")
    if here:
        near = (sys.executable, "-I", "-S", str(HERE / RELAY))
    return (*near, "--run", *srun, *far, "--framed", folder)


def ssh_relay(node: str, folder: str, *, python: str = "python3") -> tuple[str, ...]:
    """Return the command that connects to a step from the login host: it logs in to the node by SSH, as the user."""
    inside = shlex.join((python, "-I", "-S", f"{folder}/{RELAY}", folder))
    return (*SSH, node, inside)


def ssh_or_srun_relay(
    job: str, node: str, folder: str, *, python: str = "python3", here: bool = False
) -> tuple[str, ...]:
    """Return the command that connects to the step by SSH, or by srun if the node no longer accepts the user's login.

    Logins fail once Slurm begins to preempt the job: its signal ends the sessions that pam_slurm_adopt has put into the
    job, and new sessions are refused, while the job continues for its partition's grace time. An ssh that fails within
    `REFUSED_S` has read nothing of its input, so srun can take over. An ssh that fails later was connected, or waited
    for a host that does not respond.
    """
    by_ssh = shlex.join(ssh_relay(node, folder, python=python))
    by_srun = shlex.join(relay(job, node, folder, python=python, here=here))
    soon = f'[ "$status" -eq 255 ] && [ $(($(date +%s) - began)) -le {REFUSED_S} ]'
    return ("sh", "-c", f'began=$(date +%s); {by_ssh}; status=$?; if {soon}; then exec {by_srun}; fi; exit "$status"')


def signal_s(time_s: float | None) -> float:
    """Return how many seconds before the time limit the batch shell is warned. ``time_s`` is None: the limit is the
    site's default.
    """
    return SIGNAL_S if time_s is None else min(SIGNAL_S, time_s / SHORT)


def own_arguments(*, name: str, count: int, comment: str, folder: str, time_s: float | None) -> list[str]:
    """Return the sbatch arguments of every job of the pool."""
    options = [
        "--parsable",
        f"--job-name={name}",
        f"--nodes={count}-{count}",
        "--ntasks-per-node=1",
        "--no-kill",
        "--no-requeue",
        f"--signal=B:USR1@{max(1, round(signal_s(time_s)))}",
        f"--comment={comment}",
        f"--output={folder}/{OUTPUT}",
        "--open-mode=append",
        f"--chdir={folder}",
        "--export=ALL",
    ]
    if time_s is not None:
        options.append(f"--time={text_of(time_s)}")
    return options
