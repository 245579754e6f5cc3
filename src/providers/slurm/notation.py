"""Slurm's notations: durations ("1-12:00:00"), lists of nodes ("c[0-2,5],gpu07") and requirements ("gpu:a100:4"). No
I/O.

`seconds_of` and `text_of` convert durations. sbatch(1), "--time": minutes, M:S, H:M:S, D-H, D-H:M and D-H:M:S. `expand`
returns the names in a list of nodes: c0, c1, c2, c5 and gpu07, in that order. `resource_arguments` returns sbatch's
arguments for the devices, processors and memory of a node.

DURATION-1: a formatted duration, parsed again, is the same number of seconds, rounded up to whole seconds.
HOSTLIST-1: the names keep the order of the list, which is the order of the job's nodes, and keep their leading zeros.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import product

from ..base import AcceleratorRequest, LaunchRequest
from ..errors import BadRequest

DAY_S, HOUR_S, MINUTE_S = 86400, 3600, 60
WITHOUT_END = ("unlimited", "infinite")
FORMS = "minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes or days-hours:minutes:seconds"
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d+){0,2})", re.ASCII)


def seconds_of(text: str) -> float:
    """Return the seconds of a duration; infinity for "UNLIMITED".

    Raises:
        ValueError: ``text`` is not a duration in Slurm's format.
    """
    stripped = text.strip()
    if stripped.lower() in WITHOUT_END:
        return math.inf
    match = _TIME.fullmatch(stripped)
    if match is None:
        raise ValueError(f"{text!r} is no duration of Slurm's: write {FORMS}")
    parts = [int(each) for each in match["rest"].split(":")]
    if match["days"] is not None:
        return float(int(match["days"]) * DAY_S + _sum(parts, HOUR_S, MINUTE_S, 1))
    return float(_sum(parts, *((MINUTE_S, 1) if len(parts) < 3 else (HOUR_S, MINUTE_S, 1))))


def _sum(parts: Sequence[int], *units: int) -> int:
    return sum(part * unit for part, unit in zip(parts, units, strict=False))


def read_or_none(text: str) -> float | None:
    """Return the seconds of a duration in squeue's output; None for "INVALID", "NOT_SET", "N/A" and the like."""
    try:
        return seconds_of(text)
    except ValueError:
        return None


def text_of(seconds: float) -> str:
    """Format a duration for sbatch: "D-HH:MM:SS"; "UNLIMITED" for infinity."""
    if math.isinf(seconds):
        return "UNLIMITED"
    whole = max(0, math.ceil(seconds))
    days, rest = divmod(whole, DAY_S)
    hours, rest = divmod(rest, HOUR_S)
    minutes, left = divmod(rest, MINUTE_S)
    return f"{days}-{hours:02}:{minutes:02}:{left:02}"


# --- lists of nodes ---------------------------------------------------------------------------------------------------


MOST_NODES = 1 << 16  # most nodes in a list; a longer list is not from Slurm
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def expand(text: str) -> Sequence[str]:
    """Return the names of the nodes.

    Raises:
        ValueError: The text is not a list of nodes.
    """
    names: list[str] = []
    for each in _split(text.strip()):
        names += _expanded(each)
        if len(names) > MOST_NODES:
            raise ValueError(f"{text[:80]!r} stands for more than {MOST_NODES} nodes")
    return names


def _split(text: str) -> Iterator[str]:
    """Split at the commas outside of brackets."""
    depth, begin = 0, 0
    for at, letter in enumerate(text):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth not in (0, 1):
            raise ValueError(f"{text!r} is no list of nodes: its brackets do not match")
        if letter == "," and not depth:
            yield text[begin:at]
            begin = at + 1
    if depth:
        raise ValueError(f"{text!r} is no list of nodes: its brackets do not match")
    if begin < len(text):
        yield text[begin:]


def _expanded(text: str) -> list[str]:
    pieces: list[Sequence[str]] = []
    at = 0
    for match in _PIECE.finditer(text):
        if match.start() != at:
            break
        at = match.end()
        pieces.append([match[2]] if match[2] is not None else list(_numbers(match[1])))
    if at != len(text) or not pieces:
        raise ValueError(f"{text!r} is no list of nodes")
    many = 1
    for piece in pieces:
        many *= len(piece)
    if many > MOST_NODES:
        raise ValueError(f"{text[:80]!r} stands for more than {MOST_NODES} nodes")
    return ["".join(parts) for parts in product(*pieces)]


def _numbers(text: str) -> Iterator[str]:
    for each in text.split(","):
        match = _RANGE.fullmatch(each)
        if match is None:
            raise ValueError(f"[{text}] is no list of numbers")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < MOST_NODES:
            raise ValueError(f"[{text}] is no list of numbers")
        for number in range(first, last + 1):
            yield f"{number:0{len(match[1])}}"


# --- requirements of a node -------------------------------------------------------------------------------------------


MB_IN_GB = 1000
_WORD = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
UNSUPPORTED = {
    "architecture": "name the partition, or the feature that such nodes have, with Slurm(constraint=...)",
    "interconnect": "name the partition, or the feature that such nodes have, with Slurm(constraint=...)",
}


def gres_of(accelerator: AcceleratorRequest) -> str:
    """Return the gres text, as in "gpu:a100:4". Sites choose the type names; Slurm ignores their case.

    Raises:
        BadRequest: The accelerator's name cannot be a type name.
    """
    if not _WORD.fullmatch(accelerator.name):
        raise BadRequest(
            f"{accelerator.name!r} is no name of a type of devices in Slurm",
            advice="Say it as the site does: Slurm(gres='gpu:TYPE:COUNT'); `sinfo -o %G` lists the types.",
        )
    return f"gpu:{accelerator.name.lower()}:{accelerator.count}"


def resource_arguments(request: LaunchRequest, gres: str | None) -> list[str]:
    """Return sbatch's arguments for the requirements of each node. ``gres``, if given, replaces the accelerator of the
    request.

    Raises:
        BadRequest: sbatch cannot express a part of the request.
    """
    for option, instead in UNSUPPORTED.items():
        if getattr(request, option):
            raise BadRequest(f"Slurm cannot be asked for {option}: {instead}")
    devices = gres if gres is not None or request.accelerator is None else gres_of(request.accelerator)
    options = [f"--gres={devices}"] if devices else []
    if request.vcpus:
        options.append(f"--cpus-per-task={request.vcpus}")
    if request.memory_gb:
        options.append(f"--mem={math.ceil(request.memory_gb * MB_IN_GB)}M")
    if request.disk_gb:
        options.append(f"--tmp={request.disk_gb}G")
    return options
