"""Parse and format Slurm's durations. sbatch(1), "--time": minutes, M:S, H:M:S, D-H, D-H:M and D-H:M:S. No I/O.

DURATION-1: a formatted duration, parsed again, is the same number of seconds, rounded up to whole seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

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
