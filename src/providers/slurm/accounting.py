"""Query sacct for the processor and memory use of a job's nodes, and parse its output. No I/O.

The two figures are those of seff 2.1 (contribs/seff/seff in Slurm's source), for each node instead of for the job:

- CPU efficiency is the TotalCPU of all steps, divided by Elapsed times AllocCPUS.
- Memory efficiency is the memory of the step that used most (``mem`` in TRESUsageInTot: the peaks of the step's tasks,
  added up), divided by ``mem`` in AllocTRES.

Each step of a pool's job runs on one node and has one task, so the figures of a step are the figures of its node. For a
job with one node, the figures equal seff's own, except that seff rounds the processor time to whole seconds.

SACCT-1: sacct has one record of a shrunk job for each size of the job. The time of each record counts for the nodes
that the record names. A step that ran while its job was shrunk is not counted (Slurm 22.05 keeps the step as RESIZING,
without figures), and the node of such a step is not counted either.
SACCT-2: an older job with the same number is another job, and is left out. A site that restarted its numbering has such
jobs.
SACCT-3: reading sacct's output raises nothing, whatever the output contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from ...lazy_dataclass import dataclass
from .notation import DAY_S, HOUR_S, MINUTE_S, expand

FIELDS = (
    *("JobIDRaw", "State", "Start", "ElapsedRaw", "NodeList", "AllocCPUS"),
    *("AllocTRES", "ReqMem", "TotalCPU", "MaxRSS", "TRESUsageInTot"),
)
GOES_ON = frozenset({"PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "COMPLETING", "CONFIGURING"})
RESIZED = "RESIZING"  # the state of records from before a job was shrunk: of the job, and of the steps that ran then
EXTERN = "extern"  # Slurm's own step for SSH logins, which may end after the job
_CPU_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)([nc]?)", re.ASCII)
_UNITS = {unit: 1024**power for power, unit in enumerate(("", "K", "M", "G", "T", "P"))}


@dataclass(frozen=True, slots=True)
class NodeUse:
    """The processors and memory that a job had on one node, and how much of them it used.

    The memory fields are None if Slurm does not count memory, or does not limit it.
    """

    node: str
    seconds: float  # time for which the job had the node
    cpus: float  # the node's share of the job's processors; an even share if nodes differ
    cpu_s: float  # processor time of all steps
    memory_bytes: int | None  # memory of the step that used most
    memory_total_bytes: int | None  # memory that the job had requested


@dataclass(frozen=True, slots=True)
class JobUse:
    """A job in the accounting. ``complete``: no part of the job is recorded as running. ``shrunk``: the job had more
    nodes before, and the figures of some steps are lost.
    """

    job: str
    nodes: Mapping[str, NodeUse]
    complete: bool
    shrunk: bool = False


@dataclass(frozen=True, slots=True)
class _Row:
    step: str  # empty: the record of the whole job
    state: str
    start: float
    seconds: float
    nodes: tuple[str, ...]
    cpus: int
    memory_bytes: int | None  # memory per node in bytes
    cpu_s: float | None
    used_bytes: int | None


@dataclass(slots=True)
class _Sum:
    seconds: float = 0.0
    core_s: float = 0.0
    cpu_s: float = 0.0
    memory_total_bytes: int | None = None
    used_bytes: list[int] = field(default_factory=list)
    counted: bool = False  # whether any step, except Slurm's own steps, has a figure
    lost: bool = False  # whether the figures of any step are lost


def command(jobs: Sequence[str]) -> list[str]:
    """Return the sacct command for these jobs. Its output has all records of jobs that were shrunk."""
    which = ["--jobs", ",".join(jobs), "--duplicates"]
    shown = ["--noheader", "--parsable2", "--noconvert", "--format", ",".join(FIELDS)]
    return ["env", "SLURM_TIME_FORMAT=%s", "sacct", *which, *shown]


def read(answer: str) -> dict[str, JobUse]:
    """Return the jobs in an output of sacct. Unparsable lines, and nodes without any counted step, are left out."""
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
    """Return the records of the newest job, in order of time (SACCT-1, SACCT-2)."""
    newest: list[_Row] = []
    for row in sorted(records, key=lambda row: row.start, reverse=True):
        if newest and row.state != RESIZED:
            break
        newest.append(row)
    return reversed(newest)


# --- parsing ----------------------------------------------------------------------------------------------------------


def _row(line: str) -> tuple[str, _Row] | None:
    """Return the job's number and the parsed row. None: the line is not a row."""
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
        (value["State"].split() or [""])[0],  # the text is "CANCELLED by 1000" for a cancelled job
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
    """Parse "cpu=2,mem=2000M,node=1"."""
    return {name: amount for name, _, amount in _pairs(text)}


def _pairs(text: str) -> Iterator[tuple[str, str, str]]:
    for each in text.split(","):
        yield each.partition("=")


def cpu_seconds(text: str) -> float | None:
    """Return the seconds of a processor time: "00:01.250", "01:02:03", "1-02:03:04"; None: invalid."""
    match = _CPU_TIME.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (float(each or 0) for each in match.groups())
    return days * DAY_S + hours * HOUR_S + minutes * MINUTE_S + seconds


def size_bytes(text: str, unit: str) -> int | None:
    """Return the bytes of a size: "12345K", "1.5G". ``unit``: for a number without a unit. None: invalid, or 0."""
    match = _SIZE.fullmatch(text)
    return None if match is None else round(float(match[1]) * _UNITS[match[2] or unit]) or None


def _per_node(text: str, cpus: int, nodes: int) -> int | None:
    """Return the memory of a node from ReqMem: "4000M" is the job's; before Slurm 21.08, "4000Mn" is each node's, and
    "2000Mc" each processor's.
    """
    size = size_bytes(text, "M")
    if size is None:
        return None
    nodes = max(1, nodes)
    return {"n": size, "c": size * cpus // nodes}.get(text[-1], size // nodes)
