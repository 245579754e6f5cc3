"""Slurm's commands on one login host: each method of `SlurmCommands` makes one call there, and raises typed errors.

`error_of` classifies a failed command: the error has the responsible party and the next step.

SLURMERR-1: only failures that may be temporary allow a retry: the controller, munge, and time-outs.
SLURMERR-2: Slurm's own words are in every error.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Mapping, Sequence

from ...lazy_dataclass import dataclass
from ..errors import BadRequest, HostAway, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded
from ..shared.login_host import AGAIN_S, Commands, Ended, Meaning, interrupted, meant
from . import accounting, squeue
from .script import END, GRACE_S, NODES, OUTPUT, SSH, WANTED
from .squeue import JobView

# Fields of a partition to show to a user whose job is too large for it.
LIMITS = ("TotalNodes", "MaxNodes", "MaxTime", "State")
OUTPUT_BYTES = 2000  # bytes to read from the end of a job's output, to find the cause of the job's end
# Login scripts may print other lines first, so each line of this script has a prefix.
_LOOK_AROUND = """
umask 077
cache=${OUTRIDER_CACHE:-$HOME/.cache/outrider}
root=$cache/jobs
mkdir -p "$root" && cd "$root" || exit 1
me=$(id -u)
exposed=$({ stat -c '%u 700 %n' "$cache" "$root" && stat -L -c '%u %a %n' "$cache" "$root" || echo "? ? $cache"; } |
  while read -r owner mode path; do
    case "$owner $mode" in
      *[2367]? | *[2367]) ;;
      "$me "* | "0 "*) continue ;;
    esac
    printf 'outrider:exposed:%s (uid %s, mode %s; you are uid %s)\\n' "$path" "$owner" "$mode" "$me"
  done)
[ -z "$exposed" ] || { echo "$exposed"; exit 0; }
chmod 700 "$root" || exit 1
command -v sbatch >/dev/null || { echo "sbatch: command not found" >&2; exit 127; }
printf 'outrider:root:%s\\noutrider:user:%s\\n' "$(pwd -P)" "$(id -un)"
[ -z "$1" ] || scontrol --oneliner show partition "$1" | tr ' ' '\\n' | sed -n 's/^GraceTime=/outrider:grace:/p'
scontrol show config | sed -n 's/^KillWait *= *\\([0-9]*\\).*/outrider:kill:\\1/p'
true
"""
# If the folder exists already, nothing is submitted: a repeated call never creates two jobs.
_SUBMIT = """
umask 077
folder=$1; shift
mkdir "$folder" && tar -xf - -C "$folder" || exit 1
exec sbatch "$@"
"""
_NODE_FILES = """
for folder; do
  for file in "$folder"/*; do
    [ -f "$file" ] && printf 'outrider:node:%s:%s\\n' "${file##*/}" "$(cat "$file")"
  done
done
true
"""
# Try an SSH login on all nodes concurrently, for at most $1 seconds.
_LETS_IN = """
limit=$1; shift
for node; do
  { timeout "$limit" SSH "$node" true </dev/null >/dev/null 2>&1 && echo "outrider:open:$node"; } &
done
wait
true
"""
# The loop asks steps to end: it creates one file for each. If it cannot create a file (a full home), scancel follows
# all the same. A step that sees its file ends within 0.1 s. A job that only scancel ends takes Slurm's KillWait,
# because of its batch shell.
_END = """
until [ "$1" = -- ]; do ( : >"$1" ) 2>/dev/null; shift; done
shift
[ $# = 0 ] && exit
scancel --quiet --state=PENDING "$@"
exec scancel --quiet --signal=TERM "$@"
"""
_JOB = re.compile(r"(\d+)(?:;([\w.-]*))?", re.ASCII)
_ALREADY = re.compile(r"invalid job id|already completing or completed|not found", re.I)


@dataclass(frozen=True, slots=True)
class Around:
    """The facts about a login host that a client needs.

    ``root``: the folder that has the folders of all jobs; ``grace_s``: seconds from SIGTERM to SIGKILL when Slurm ends
    a job.
    """

    root: str
    user: str
    grace_s: float = GRACE_S


class SlurmCommands:
    """Slurm's commands, which ``commands`` runs on one host. Each method raises a ProviderError if its command fails;
    see `login_host.Commands`.
    """

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    @property
    def where(self) -> str:
        return self._commands.where

    async def look_around(self, partition: str = "") -> Around:
        """Return the facts about this host. The GraceTime of ``partition`` applies to preempted jobs; if there is no
        GraceTime, KillWait applies.

        Raises:
            BadRequest: Other users may change the programs that jobs run.
        """
        ended = await self._commands.run(["sh", "-c", _LOOK_AROUND, "look", partition])
        refuse_failed("sbatch", ended, self.where)
        parts = _marked(ended.stdout)
        if "exposed" in parts:
            raise untrusted(f"{parts['exposed']} {self.where}")
        try:
            times = (parts.get(name, "0") for name in ("grace", "kill"))
            grace_s, kill_s = (float(each) if each.isdecimal() else 0.0 for each in times)
            return Around(parts["root"], parts["user"], grace_s or kill_s or GRACE_S)
        except KeyError:
            raise ProviderError(f"A shell {self.where} says nothing where it should: {ended.stdout[-200:]!r}") from None

    async def submit(self, folder: str, files: Mapping[str, str], arguments: Sequence[str]) -> str:
        """Create the folder with these files, and submit a job. Return the job's id.

        Raises:
            ProviderError: The command failed. A job may exist, unless `is_refusal` returns True for the error.
        """
        packed = _packed(files)
        ended = await self._commands.run(["sh", "-c", _SUBMIT, "submit", folder, *arguments], stdin=packed)
        refuse_failed("sbatch", ended, self.where)
        for line in reversed(ended.stdout.splitlines()):
            if match := _JOB.fullmatch(line.strip()):
                if match[2]:
                    await self._end_elsewhere(match[1], match[2])
                return match[1]
        output = f"{ended.stderr}\n{ended.stdout}".strip()[:MOST]
        raise HostAway(f"sbatch {self.where} does not say which job it made: {output!r}", retry_after_s=AGAIN_S)

    async def _end_elsewhere(self, job: str, cluster: str) -> None:
        """End a job that sbatch has submitted to another cluster, not to the login host's own: no later command would
        find it.

        Raises:
            BadRequest
        """
        try:
            ended = (await self._commands.run(["scancel", f"--clusters={cluster}", job])).status == 0
        except ProviderError:
            ended = False
        left = "the job was cancelled" if ended else f"end it by `scancel --clusters={cluster} {job}`"
        raise BadRequest(
            f"sbatch {self.where} has given job {job} to cluster {cluster}, and not to its own; {left}",
            advice="Name a login host of the cluster meant: Slurm(host=...); leave SBATCH_CLUSTERS unset there.",
        )

    async def jobs(self, user: str, name: str | None) -> list[JobView]:
        ended = await self._commands.run(squeue.command(user=user, name=name))
        refuse_failed("squeue", ended, self.where)
        return squeue.read(ended.stdout)

    async def limits(self, partition: str) -> str:
        """Return a partition's limits for jobs, in Slurm's own format; empty: unknown. If ``partition`` is empty,
        return the limits of the default partition.
        """
        ended = await self._commands.run(["scontrol", "--oneliner", "show", "partition", *filter(None, [partition])])
        for line in ended.stdout.splitlines():
            fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if "PartitionName" in fields and (partition or fields.get("Default") == "YES"):
                limits = [f"{name}={fields[name]}" for name in LIMITS if name in fields]
                return f"partition {fields['PartitionName']}: {', '.join(limits)}"
        return ""

    async def lets_in(self, nodes: Sequence[str], within_s: float) -> set[str]:
        """Return the nodes of a running job that accept the user's SSH login from here, and respond in time."""
        script = _LETS_IN.replace("SSH", " ".join(SSH))
        ended = await self._commands.run(["sh", "-c", script, "open", f"{within_s:g}", *nodes])
        lines = [line.partition("outrider:open:") for line in ended.stdout.splitlines()]
        return {node for before, mark, node in lines if mark and not before}

    async def accounting(self, jobs: Sequence[str]) -> Ended:
        """Run sacct for jobs. At a site without accounting, the command fails with a message about it."""
        return await self._commands.run(accounting.command(jobs))

    async def node_files(self, folders: Sequence[str]) -> dict[str, Mapping[str, str]]:
        """Return what step servers have written, by node. The folder is listed first, which makes NFS refresh its
        cache.
        """
        places = [f"{folder}/{NODES}" for folder in folders]
        ended = await self._commands.run(["sh", "-c", _NODE_FILES, "nodes", *places])
        files: dict[str, Mapping[str, str]] = {}
        for line in ended.stdout.splitlines():
            if line.startswith("outrider:node:"):
                node, _, text = line.removeprefix("outrider:node:").partition(":")
                try:
                    content = json.loads(text)
                except ValueError:
                    continue
                if isinstance(content, dict):
                    files[node] = {str(key): str(value) for key, value in content.items()}
        return files

    async def output(self, folder: str) -> str:
        """Return the last bytes of a job's output, as one line; empty: no output."""
        ended = await self._commands.run(["tail", "-c", str(OUTPUT_BYTES), f"{folder}/{OUTPUT}"])
        return " ".join(ended.stdout.split())

    async def end_jobs(self, jobs: Mapping[str, str]) -> None:
        """Remove pending jobs from the queue, and ask the steps of running jobs to end, which takes a moment. ``jobs``:
        id -> folder.

        If a node does not respond, no error is raised: the queue shows which jobs remain.
        """
        files = [f"{folder}/{END}" for folder in jobs.values()]
        await self._commands.run(["sh", "-c", _END, "end", *files, "--", *jobs])

    async def end_steps(self, folder: str, nodes: Sequence[str]) -> None:
        """Ask the steps on these nodes of a job to end. They end within a second."""
        await self._commands.run(["sh", "-c", _END, "end", *(f"{folder}/{END}.{node}" for node in nodes), "--"])

    async def cancel(self, jobs: Sequence[str]) -> None:
        """Cancel jobs, which takes the site's KillWait."""
        ended = await self._commands.run(["scancel", *jobs])
        if ended.status != 0 and ended.stderr.strip() and not _ALREADY.search(ended.stderr):
            raise error_of("scancel", ended, self.where)

    async def want_nodes(self, folder: str, count: int) -> None:
        """Make a pending job start fewer steps than it has nodes. The job keeps all its nodes until it starts."""
        await self._commands.run(
            ["sh", "-c", 'echo "$2" >"$1.new" && mv "$1.new" "$1"', "want", f"{folder}/{WANTED}", str(count)]
        )

    async def keep_nodes(self, job: str, nodes: Sequence[str]) -> Ended:
        """Shrink a job to these nodes, and so release all others."""
        return await self._commands.run(["scontrol", "update", f"JobId={job}", f"NodeList={','.join(nodes)}"])

    async def remove(self, folders: Sequence[str]) -> None:
        if folders:
            await self._commands.run(["rm", "-rf", "--", *folders])


def untrusted(folder: str) -> BadRequest:
    """Return the error for a folder to which other users may write. ``folder``: its path, with the reason."""
    return BadRequest(
        f"The programs of jobs cannot lie in a folder that somebody else may change, which is so of {folder}",
        advice="`chmod go-w` makes it yours alone, if it belongs to you; or set OUTRIDER_CACHE there to a folder in "
        "which only you can write, and which the nodes see as well.",
    )


def _marked(text: str) -> dict[str, str]:
    lines = [line.split(":", 2) for line in text.splitlines() if line.startswith("outrider:")]
    return {line[1]: line[2] for line in lines if len(line) == 3}


def _packed(files: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in files.items():
            data = text.encode()
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o600
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


# --- errors of commands -----------------------------------------------------------------------------------------------


NO_COMMAND = 127
MOST = 600  # longest part of a command's output (characters) in an error


_SINFO = "`sinfo -s` lists the partitions."
_LIMITS = "`sacctmgr show assoc where user=$USER` and `sacctmgr show qos` say the limits: ask for less."
_MEANINGS = (
    Meaning(
        HostAway,
        "Slurm's authentication fails",
        "Have munge looked at on the login host: `munge -n | unmunge`.",
        ("munge", "protocol authentication", r"invalid (?:\w+ )*credential", "authentication plugin"),
        AGAIN_S,
    ),
    Meaning(
        HostAway,
        "Slurm's controller does not answer",
        "`scontrol ping` on the login host says whether it is up.",
        (
            "unable to contact slurm controller",
            "connect failure",
            "connection refused",
            "socket timed out",
            "zero bytes were trans",
            "unable to establish (?:controller|configuration)",
            "controller is (?:not responding|in standby)",
            "temporarily unable",
            "message receive failure",
            "communication connection failure",
            "connection timed out",
            "broken pipe",
            "unexpected message received",
        ),
        AGAIN_S,
    ),
    Meaning(BadRequest, "There is no such partition", _SINFO, ("invalid partition",)),
    Meaning(
        NotAuthorized,
        "Slurm does not know this user's account, or it may not use this partition",
        "`sacctmgr show assoc where user=$USER` lists your accounts: name one with Slurm(account=...).",
        ("invalid account or account/partition",),
    ),
    Meaning(BadRequest, "There is no such QOS for this account", "`sacctmgr show qos` lists them.", ("invalid qos",)),
    Meaning(
        QuotaExceeded,
        "A limit of the account or of its QOS is reached",
        _LIMITS,
        ("accounting/qos policy", "job submit limit", "qosmax", "assocmax", "assocgrp", "qosgrp", "maxsubmit"),
    ),
    Meaning(
        BadRequest,
        "The cluster has no such device",
        "`sinfo -o '%P %G'` lists them: Slurm(gres='gpu:TYPE:COUNT').",
        ("invalid generic resource", "invalid gres", "gres.*invalid", "invalid trackable resource"),
    ),
    Meaning(
        BadRequest,
        "The time limit is not allowed",
        "`scontrol show partition` says the longest: Slurm(time=...).",
        ("time limit.*(?:invalid|exceeds|partition)", "time limit specification"),
    ),
    Meaning(
        BadRequest,
        "The partition never has so many nodes for a job",
        _SINFO,
        ("node count specification", "more nodes than", "too many nodes", "nodes.*exceed"),
    ),
    Meaning(
        BadRequest,
        "No node has what is asked for",
        "`sinfo -o '%P %D %c %m %G %f'` lists what the nodes have.",
        (
            "node configuration is not available",
            "memory specification",
            "more processors",
            "invalid feature",
            "can ?not be satisfied",
            "cpu count per node",
        ),
    ),
    Meaning(
        NotAuthorized,
        "Slurm refuses this user",
        "Ask the site's administrators: the account may be locked, or not allowed in this partition.",
        ("user.*(?:not permitted|denied|not allowed)", "access/permission denied", "account.*locked", "invalid user"),
    ),
    Meaning(
        BadRequest,
        "sbatch does not take an option",
        "Look at Slurm(options={...}), and at `man sbatch` there.",
        ("unrecognized option", "invalid option", "invalid argument", "ambiguous", "invalid --", "bad value"),
    ),
    Meaning(ProviderError, "Slurm does not know the job any more", "", ("invalid job id",)),
    Meaning(
        BadRequest,
        "The job depends on one that is not there, or in a way that Slurm does not know",
        "`squeue --me` lists your jobs: Slurm(options={'dependency': 'afterok:4711'}).",
        ("dependency problem",),
    ),
    Meaning(
        BadRequest,
        "The cluster has no such reservation, or this user may not use it",
        "`scontrol show reservation` lists them.",
        ("reservation is invalid", "invalid reservation", "reservation.*(?:denied|not (?:available|permitted))"),
    ),
    Meaning(BadRequest, "There is no such license", "`scontrol show licenses` lists them.", ("invalid license",)),
    Meaning(BadRequest, "There is no such node", "`sinfo -N` lists them.", ("invalid node name",)),
    Meaning(NoCapacity, "No node is up", "`sinfo -R` says why.", ("down, drained", "no nodes available"), AGAIN_S),
    Meaning(
        BadRequest,
        "The job's folder cannot be written on the login host",
        "Look at `quota` and `df ~` there; OUTRIDER_CACHE names another folder, which the nodes must see as well.",
        ("no space left", "disk quota", "read-only file system", "permission denied", "file exists"),
    ),
    # The last entry of the table: sbatch or the Slurm controller reports a mistake in the request, so no job exists.
    Meaning(
        BadRequest,
        "Slurm does not take the job as it is asked for",
        "Look at the options of Slurm(...), and at `man sbatch` there.",
        (r"sbatch: (?:error|fatal): .*\b(?:invalid|unrecognized|unsupported|illegal|missing|unknown)\b",),
    ),
)


def error_of(command: str, ended: Ended, where: str = "here") -> ProviderError:
    """Return the error for a failed command. ``where`` names the host in the text: "here", or "on login"."""
    text = " ".join(f"{ended.stderr}\n{ended.stdout}".split())[:MOST]
    quoted = f": {command} says {text!r}" if text else f": {command} ended with status {ended.status}, and says nothing"
    if ended.status == NO_COMMAND or re.search(rf"\b{re.escape(command)}\b.*(?:not found|no such file)", text, re.I):
        return BadRequest(
            f"There is no {command} {where}{quoted}",
            code="NoSlurm",
            advice="Name the login host, Slurm(host='login'), or have its PATH lead to Slurm without a terminal.",
        )
    error = interrupted(command, ended, where, quoted) or meant(text, _MEANINGS, lambda words: f"{words}{quoted}")
    return error or ProviderError(f"Slurm refuses what it is asked for{quoted}")


def is_refusal(error: ProviderError) -> bool:
    """Return whether the command certainly had no effect: Slurm refused it with a known message."""
    return not isinstance(error, HostAway) and type(error) is not ProviderError


def refuse_failed(command: str, ended: Ended, where: str) -> None:
    """Raise the error if a command has failed.

    Raises:
        ProviderError
    """
    if ended.status != 0:
        raise error_of(command, ended, where)
