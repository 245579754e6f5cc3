"""Slurm's commands of one login host, as a fleet needs them: each is one call there, with its errors in types."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Mapping, Sequence

from ...lazy_dataclass import dataclass
from ..errors import BadRequest, HostAway, ProviderError
from ..login_host import AGAIN_S, Commands, Ended
from . import accounting, squeue
from .errors import MOST, error_of, refuse_failed
from .script import END, GRACE_S, NODES, OUTPUT, SSH, WANTED
from .squeue import JobView

LIMITS = ("TotalNodes", "MaxNodes", "MaxTime", "State")  # what is said of a partition that is too small for a job
OUTPUT_BYTES = 2000  # of a job's output, in the cause of its end
# What login scripts print comes before it, so each of our lines says that it is one.
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
# The folder is new, or nothing is submitted: the same call never makes two jobs.
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
# To each node at once, and no longer than $1 seconds.
_LETS_IN = """
limit=$1; shift
for node; do
  { timeout "$limit" SSH "$node" true </dev/null >/dev/null 2>&1 && echo "outrider:open:$node"; } &
done
wait
true
"""
# A file that cannot be written, as in a full home, must not end this shell: scancel comes after it. Steps that end by
# themselves are gone in a tenth of a second. What scancel ends takes KillWait: the batch shell stays.
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
    """The facts of a login host. ``root``: of all jobs' folders. ``grace_s``: between SIGTERM and a job's end."""

    root: str
    user: str
    grace_s: float = GRACE_S


class Slurm:
    """Slurm's commands, run by ``commands``. Each method raises a ProviderError; see `login_host.Commands`."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    @property
    def where(self) -> str:
        return self._commands.where

    async def look_around(self, partition: str = "") -> Around:
        """``partition``: whose jobs are preempted with its GraceTime; without one, KillWait is all that is sure.

        Raises:
            BadRequest: others than this user may change what jobs run.
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
        """Make the folder with these files, and submit. Returns the job's id.

        Raises:
            ProviderError: unless it `is_refusal`, there may be a job all the same.
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
        """End a job that sbatch has given to another cluster than its own, where nobody would find it.

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
        """Return what a partition allows a job, in Slurm's words; empty: Slurm does not say. Without ``partition`` the
        one for jobs that name none is meant.
        """
        ended = await self._commands.run(["scontrol", "--oneliner", "show", "partition", *filter(None, [partition])])
        for line in ended.stdout.splitlines():
            fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if "PartitionName" in fields and (partition or fields.get("Default") == "YES"):
                limits = [f"{name}={fields[name]}" for name in LIMITS if name in fields]
                return f"partition {fields['PartitionName']}: {', '.join(limits)}"
        return ""

    async def lets_in(self, nodes: Sequence[str], within_s: float) -> set[str]:
        """Return which nodes of a job that runs let its user in by SSH from here, as far as they say so in time."""
        script = _LETS_IN.replace("SSH", " ".join(SSH))
        ended = await self._commands.run(["sh", "-c", script, "open", f"{within_s:g}", *nodes])
        lines = [line.partition("outrider:open:") for line in ended.stdout.splitlines()]
        return {node for before, mark, node in lines if mark and not before}

    async def accounting(self, jobs: Sequence[str]) -> Ended:
        """Ask sacct for jobs. Where the site has no accounting, it fails and says so."""
        return await self._commands.run(accounting.command(jobs))

    async def node_files(self, folders: Sequence[str]) -> dict[str, Mapping[str, str]]:
        """Return what step servers have written, by node. To list the folder has NFS look at the disk."""
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
        """Return the end of what a job has written, in one line; empty: nothing."""
        ended = await self._commands.run(["tail", "-c", str(OUTPUT_BYTES), f"{folder}/{OUTPUT}"])
        return " ".join(ended.stdout.split())

    async def end_jobs(self, jobs: Mapping[str, str]) -> None:
        """Take jobs, given with their folders, out of the queue, or tell their steps to end, which they do at once.
        What fails for a node that does not answer is no error: the queue shows what is left.
        """
        files = [f"{folder}/{END}" for folder in jobs.values()]
        await self._commands.run(["sh", "-c", _END, "end", *files, "--", *jobs])

    async def end_steps(self, folder: str, nodes: Sequence[str]) -> None:
        """Tell the steps on nodes of a job to end, which they do within a second."""
        await self._commands.run(["sh", "-c", _END, "end", *(f"{folder}/{END}.{node}" for node in nodes), "--"])

    async def cancel(self, jobs: Sequence[str]) -> None:
        """End jobs by force, which takes the site's KillWait."""
        ended = await self._commands.run(["scancel", *jobs])
        if ended.status != 0 and ended.stderr.strip() and not _ALREADY.search(ended.stderr):
            raise error_of("scancel", ended, self.where)

    async def want_nodes(self, folder: str, count: int) -> None:
        """Have a job that has not started yet start fewer steps than it has nodes, which it keeps until then."""
        await self._commands.run(
            ["sh", "-c", 'echo "$2" >"$1.new" && mv "$1.new" "$1"', "want", f"{folder}/{WANTED}", str(count)]
        )

    async def keep_nodes(self, job: str, nodes: Sequence[str]) -> Ended:
        """Give back the others."""
        return await self._commands.run(["scontrol", "update", f"JobId={job}", f"NodeList={','.join(nodes)}"])

    async def remove(self, folders: Sequence[str]) -> None:
        if folders:
            await self._commands.run(["rm", "-rf", "--", *folders])


def untrusted(folder: str) -> BadRequest:
    """Return the error for a folder that somebody else may write in. ``folder``: with why."""
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
