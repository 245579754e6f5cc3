"""What squeue says of jobs, also of those that ended some minutes ago."""

from __future__ import annotations

from dataclasses import dataclass

FORMAT = "%A|%T|%D|%N|%V|%S|%e|%j|%k"  # the comment is the last: it may have any letter
FIELDS = FORMAT.count("|") + 1
LIVING = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING", "SIGNALING"}


@dataclass(frozen=True, slots=True)
class Job:
    """Times are in whole seconds since 1970. ``nodes``: how many it has, or asks for. ``ended``: None: it is left."""

    id: str
    state: str
    nodes: int
    hosts: str  # as Slurm writes them: "c[0-2]"
    submitted: float
    started: float | None
    ended: float | None
    name: str
    comment: str = ""

    @property
    def pool(self) -> str:
        """Of its comment; empty: it is no pool's."""
        return self._part(1)

    @property
    def owner(self) -> str:
        return self._part(2)

    @property
    def token(self) -> str:
        """Of the one call of sbatch that made it."""
        return self._part(3)

    def _part(self, number: int) -> str:
        parts = self.comment.split(":")
        return parts[number] if len(parts) == 4 and parts[0] == "outrider" else ""


def command(partitions: str) -> list[str]:
    which = [f"--partition={partitions}", "--states=all", "--noheader", f"--format={FORMAT}"]
    return ["env", "SLURM_TIME_FORMAT=%s", "squeue", *which]


def read(answer: str) -> list[Job]:
    return [_job(line.split("|", FIELDS - 1)) for line in answer.splitlines() if line.count("|") >= FIELDS - 1]


def _job(fields: list[str]) -> Job:
    number, state, nodes, hosts, submitted, started, ended, name, comment = fields
    living = state in LIVING
    return Job(
        number,
        state,
        int(nodes),
        hosts,
        float(submitted),
        float(started) if started.isdecimal() and state != "PENDING" else None,
        None if living else float(ended),
        name,
        comment,
    )
