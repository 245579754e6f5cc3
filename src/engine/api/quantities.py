"""Quantities as text for people: counts, durations, sizes, amounts of money and times."""

from __future__ import annotations

import math
import time


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def seconds(duration_s: float, digits: int = 1) -> str:
    if duration_s < 60:
        return f"{duration_s:.{digits}f} s"
    minutes, rest = divmod(int(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size(amount: float) -> str:
    """Return a number of bytes as text with a suitable unit, such as "1.5 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError("GB is the last")


def percent(part: float) -> str:
    return f"{100 * part:.{1 if part < 0.1 else 0}f} %"


def cents(usd: float) -> str:
    """Return an amount in USD as text: with two decimals or, for less than one cent, with two significant digits."""
    return f"{usd:.2f}" if usd == 0 or abs(usd) >= 0.01 else f"{usd:.2g}" if abs(usd) >= 1e-4 else "less than 0.0001"


def clock_time(at: float, now: float) -> str:
    """Return a unix time as local time. The date is included if it differs from the date of ``now``."""
    try:
        day, today = time.localtime(at), time.localtime(now)
        return time.strftime("%H:%M" if day[:3] == today[:3] else "%Y-%m-%d %H:%M", day)
    except (OverflowError, ValueError, OSError):
        return "at no known time"


def time_text(at: float) -> str:
    """Format a unix time as a UTC time with milliseconds."""
    whole = math.floor(at)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{int((at - whole) * 1000):03}Z"


def compact_time(at: float) -> str:
    """Format a unix time as a UTC time with milliseconds, for file names."""
    return time_text(at).replace("-", "").replace(":", "")
