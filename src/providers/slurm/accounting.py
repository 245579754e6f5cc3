"""Ask sacct how much of a job's processors and memory its nodes have used, and read its answer. No I/O.

The two figures are those of seff 2.1 (contribs/seff/seff in Slurm's source), for each node instead of for the job:

- CPU efficiency is the TotalCPU of all steps, divided by Elapsed times AllocCPUS.
- Memory efficiency is the memory of the step that used most (``mem`` in TRESUsageInTot: the peaks of its tasks, added
  up), divided by ``mem`` in AllocTRES.

A pool's job has steps of one node and one task each, so that their figures are the node's. Of a job of one node they
are equal to seff's own, but that seff rounds the processor time to whole seconds.

SACCT-1: a job that was shrunk has a record for each of its sizes; the time of each counts for the nodes that it names.
A step that ran at that moment is never counted (Slurm 22.05 keeps it as RESIZING, without figures), so nor is its node.
SACCT-2: an older job with the same number, as where a site has begun to count anew, is not this one.
SACCT-3: whatever the answer has in it, reading it raises nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from ...lazy_dataclass import dataclass
from .durations import DAY_S, HOUR_S, MINUTE_S
from .hostlist import expand

FIELDS = (
    *("JobIDRaw", "State", "Start", "ElapsedRaw", "NodeList", "AllocCPUS"),
    *("AllocTRES", "ReqMem", "TotalCPU", "MaxRSS", "TRESUsageInTot"),
)
GOES_ON = frozenset({"PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "COMPLETING", "CONFIGURING"})
RESIZED = "RESIZING"  # the record of a job as it was before it was shrunk, and of the steps that it had then
EXTERN = "extern"  # Slurm's own step for those who log in by SSH: it may end after the job
_CPU_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)([nc]?)", re.ASCII)
_UNITS = {unit: 1024**power for power, unit in enumerate(("", "K", "M", "G", "T", "P"))}


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A job's share of one node, and how much of it was used. Memory: None where Slurm does not count or limit it."""

    node: str
    seconds: float  # it was the job's
    cpus: float  # of the job's processors: its even share where nodes differ
    cpu_s: float  # processor time of all steps
    memory_bytes: int | None  # of the step that used most
    memory_total_bytes: int | None  # that the job had asked for


@dataclass(frozen=True, slots=True)
class JobUse:
    """A job as the accounting knows it. ``complete``: nothing of it is still counted as running. ``shrunk``: it had
    more nodes before, and the figures of some steps are lost.
    """

    job: str
    nodes: Mapping[str, NodeUse]
    complete: bool
    shrunk: bool = False


@dataclass(frozen=True, slots=True)
class _Row:
    step: str  # empty: of the job as a whole
    state: str
    start: float
    seconds: float
    nodes: tuple[str, ...]
    cpus: int
    memory_bytes: int | None  # per node
    cpu_s: float | None
    used_bytes: int | None


@dataclass(slots=True)
class _Sum:
    seconds: float = 0.0
    core_s: float = 0.0
    cpu_s: float = 0.0
    memory_total_bytes: int | None = None
    used_bytes: list[int] = field(default_factory=list)
    counted: bool = False  # a step of it is, beside Slurm's own
    lost: bool = False  # the figures of a step are


def command(jobs: Sequence[str]) -> list[str]:
    """Return the command that asks for jobs, with all records of those that were shrunk."""
    which = ["--jobs", ",".join(jobs), "--duplicates"]
    shown = ["--noheader", "--parsable2", "--noconvert", "--format", ",".join(FIELDS)]
    return ["env", "SLURM_TIME_FORMAT=%s", "sacct", *which, *shown]


def read(answer: str) -> dict[str, JobUse]:
    """Return the jobs of an answer. A line that is none is left out, and so is a node of which no step was counted."""
    jobs: dict[str, list[_Row]] = {}
    for line in answer.splitlines():
        row = _row(line)
        if row is not None:
            jobs.setdefault(row[0], []).append(row[1])
    return {job: use for job, rows in jobs.items() if (use := _use(job, rows)) is not None}


def _use(job: str, rows: Sequence[_Row]) -> JobUse | None:
    records = list(_newest([row for row in rows if not row.step]))
    if not records:
        return None
    steps = [row for row in rows if row.step and row.start >= records[0].start]
    sums: dict[str, _Sum] = {}
    for record in records:
        for node in record.nodes:
            each = sums.setdefault(node, _Sum())
            each.seconds += record.seconds
            each.core_s += record.seconds * record.cpus / len(record.nodes)
            each.memory_total_bytes = record.memory_bytes or each.memory_total_bytes
    for step in steps:
        if len(step.nodes) == 1 and step.nodes[0] in sums and step.cpu_s is not None:
            each = sums[step.nodes[0]]
            each.cpu_s += step.cpu_s
            each.used_bytes += [] if step.used_bytes is None else [step.used_bytes]
            each.counted |= step.step.isdecimal()
            each.lost |= step.state == RESIZED
    own = [step for step in steps if step.step != EXTERN]
    complete = not any(row.state in GOES_ON for row in [records[-1], *own]) and records[-1].state != RESIZED
    nodes = {node: _node_use(node, each) for node, each in sums.items() if each.counted and not each.lost}
    return JobUse(job, nodes, complete, any(each.lost for each in sums.values()))


def _node_use(node: str, each: _Sum) -> NodeUse:
    cpus = each.core_s / each.seconds if each.seconds else 0.0
    return NodeUse(node, each.seconds, cpus, each.cpu_s, max(each.used_bytes, default=None), each.memory_total_bytes)


def _newest(records: Sequence[_Row]) -> Iterable[_Row]:
    """Return the records of the newest job, the first first (SACCT-1, SACCT-2)."""
    newest: list[_Row] = []
    for row in sorted(records, key=lambda row: row.start, reverse=True):
        if newest and row.state != RESIZED:
            break
        newest.append(row)
    return reversed(newest)


# --- words ------------------------------------------------------------------------------------------------------------


def _row(line: str) -> tuple[str, _Row] | None:
    """Return the number of the job and its row. None: the line is no row."""
    columns = line.rstrip("\r").split("|")
    if len(columns) != len(FIELDS):
        return None
    job, _, step = columns[0].partition(".")
    if not job.isdecimal() or not job.isascii():
        return None
    value = dict(zip(FIELDS, columns, strict=True))
    try:
        nodes = tuple(expand(value["NodeList"]))
    except ValueError:
        nodes = ()
    allocated, used = _counts(value["AllocTRES"]), _counts(value["TRESUsageInTot"])
    memory_bytes = size_bytes(allocated.get("mem", ""), "M")
    cpus = int(_number(value["AllocCPUS"]))
    row = _Row(
        step,
        (value["State"].split() or [""])[0],  # "CANCELLED by 1000"
        _number(value["Start"]),
        _number(value["ElapsedRaw"]),
        nodes,
        cpus,
        _per_node(value["ReqMem"], cpus, len(nodes)) if memory_bytes is None else memory_bytes // max(1, len(nodes)),
        cpu_seconds(value["TotalCPU"]),
        size_bytes(used.get("mem", "") or value["MaxRSS"], ""),
    )
    return job, row


def _number(text: str) -> float:
    return float(text) if text.isdecimal() and text.isascii() else 0.0


def _counts(text: str) -> dict[str, str]:
    """Read "cpu=2,mem=2000M,node=1"."""
    return {name: amount for name, _, amount in _pairs(text)}


def _pairs(text: str) -> Iterator[tuple[str, str, str]]:
    for each in text.split(","):
        yield each.partition("=")


def cpu_seconds(text: str) -> float | None:
    """Return the seconds of a processor time: "00:01.250", "01:02:03", "1-02:03:04"; None: it is none."""
    match = _CPU_TIME.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (float(each or 0) for each in match.groups())
    return days * DAY_S + hours * HOUR_S + minutes * MINUTE_S + seconds


def size_bytes(text: str, unit: str) -> int | None:
    """Return the bytes of a size: "12345K", "1.5G". ``unit``: of a number without one; None: it is no size, or 0."""
    match = _SIZE.fullmatch(text)
    return None if match is None else round(float(match[1]) * _UNITS[match[2] or unit]) or None


def _per_node(text: str, cpus: int, nodes: int) -> int | None:
    """Return the memory of a node from ReqMem: "4000M" of the job; before Slurm 21.08 "4000Mn" of each node, or
    "2000Mc" of each processor.
    """
    size = size_bytes(text, "M")
    if size is None:
        return None
    nodes = max(1, nodes)
    return {"n": size, "c": size * cpus // nodes}.get(text[-1], size // nodes)
