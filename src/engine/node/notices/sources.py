"""The sources of preemption notices: what one is, those that need no cloud, and how a provider's texts name them all.

    aws   aws-rebalance   gcp   gcp-maintenance,seconds=3600   azure   slurm,USR1=120,TERM=30

A text is a name and options behind commas. ``url=`` is another place to ask than the cloud's own. No source is used
that the node's provider does not name, but for the file.
"""

from __future__ import annotations

import asyncio
import math
import random
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

WITHDRAWN = "withdrawn"  # in place of a signal's seconds: it takes back what another one has announced
FIRST_S, AT_MOST_S = 1.0, 30.0  # between two questions while there is no answer
_SIGNALS = ("signal", "slurm")
_CLOUDS = {  # modules that are imported where they are asked for: an HTTP client's imports take 20 ms
    "aws": ("aws", "SpotAction"),
    "aws-rebalance": ("aws", "Rebalance"),
    "gcp": ("gcp", "Preempted"),
    "gcp-maintenance": ("gcp", "Maintenance"),
    "azure": ("azure", "ScheduledEvents"),
}

# The seconds that are left; None: there is no notice, or not any more. To report the same again costs nothing.
Report = Callable[[float | None], None]


def named(texts: Sequence[str]) -> list[NoticeSource]:
    """Return the sources that the texts name.

    Raises:
        ValueError: a text names no source; the error says what it could be.
    """
    found: list[NoticeSource] = []
    for text in texts:
        name, *options = text.split(",")
        pairs = dict(_pair(option, text) for option in options)
        if name in _SIGNALS:
            found.append(_signals(name, pairs, text))
        elif name in _CLOUDS:
            found.append(_cloud(name, pairs, text))
        else:
            raise ValueError(f"{text!r} is no source of notices: {', '.join([*_CLOUDS, *_SIGNALS])}")
    if len({source.name for source in found}) < len(found):
        raise ValueError(f"a source of notices is there twice: {', '.join(texts)}")
    return found


def signals(texts: Sequence[str]) -> list[int]:
    """Return the signals that these sources listen to."""
    return [number for source in named(texts) if isinstance(source, Signals) for number in source.meanings]


class Unanswered(Exception):
    """Raised when the service did not answer, or not as it should: that says nothing about the machine."""


class PolledSource:
    """Something that is asked again and again, less often while it does not answer.

    The beginning and the end of a failure are logged.
    """

    name: str
    every_s: float
    _failures = 0

    async def ask(self, report: Report) -> None:
        """Ask once. A question that fails changes nothing of what was reported before."""
        raise NotImplementedError

    async def watch(self, report: Report) -> None:
        while True:
            try:
                await self.ask(report)
            except Exception as error:  # noqa: BLE001  a defect of ours must not blind this machine either
                self._failures += 1
                if self._failures == 1:
                    text = str(error) if isinstance(error, Unanswered) else f"{type(error).__name__}: {error}"
                    self._log(f"{text}; it is asked again")
                delay = min(AT_MOST_S, FIRST_S * 2.0 ** min(self._failures - 1, 16))
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311  no secret: many nodes ask one service
            else:
                if self._failures:
                    self._log(f"answers again, after {self._failures} tries")
                self._failures = 0
                await asyncio.sleep(self.every_s)

    def _log(self, text: str) -> None:
        with suppress(OSError):  # a full disk: notices are looked for all the same
            print(f"notices: {self.name}: {text}", file=sys.stderr, flush=True)


class PreemptFile(PolledSource):
    """A file that appears with the seconds in it, and is removed when the notice is withdrawn."""

    name = "file"
    every_s = 1.0  # a file's metadata: 10 us
    _reported: float | None = None

    def __init__(self, path: Path) -> None:
        self._path = path

    async def ask(self, report: Report) -> None:
        try:
            seconds = float(self._path.read_text())
        except FileNotFoundError:
            seconds = None
        except (OSError, ValueError):  # still being written
            return
        if seconds != self._reported and (seconds is None or math.isfinite(seconds)):
            self._reported = seconds
            report(seconds)


class Signals:
    """Signals that announce the end, with the seconds that each leaves, or None: it takes back what was announced.

    Slurm sends what ``--signal`` says that long before the time limit, and SIGTERM a partition's GraceTime before it
    kills what it preempts; neither says how long, so the texts do. They reach every process of a job's step: see
    `shield`.
    """

    def __init__(self, name: str, meanings: Mapping[int, float | None]) -> None:
        self.name = name
        self.meanings = meanings

    async def watch(self, report: Report) -> None:
        loop = asyncio.get_running_loop()
        for number, seconds in self.meanings.items():
            loop.add_signal_handler(number, report, seconds)
        try:
            await loop.create_future()
        finally:
            for number in self.meanings:
                loop.remove_signal_handler(number)


NoticeSource = PolledSource | Signals  # `watch` runs until it is cancelled


def _signals(name: str, pairs: dict[str, str], text: str) -> Signals:
    try:
        meanings = {_number_of(each): None if value == WITHDRAWN else _positive(value) for each, value in pairs.items()}
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from error
    if not any(meanings.values()):
        raise ValueError(f"{text!r}: say which signals, and the seconds that each leaves: {name},USR1=120")
    return Signals(name, meanings)


def _number_of(name: str) -> int:
    try:
        return int(signal.Signals[name if name.startswith("SIG") else f"SIG{name}"])
    except KeyError:
        raise ValueError(f"{name!r} is not a signal") from None


def _cloud(name: str, pairs: dict[str, str], text: str) -> PolledSource:
    given: dict[str, object] = {}
    for option, value in pairs.items():
        if option == "url" and value.startswith("http://"):
            given["url"] = value
        elif option == "seconds" and name == "gcp-maintenance":
            given["seconds"] = _positive(value)
        else:
            raise ValueError(f"{text!r}: it has no option {option}={value}")
    module, kind = _CLOUDS[name]
    source: PolledSource = getattr(import_module(f".{module}", __package__), kind)(**given)
    return source


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = option.partition("=")
    if not (name and equals and value):
        raise ValueError(f"{text!r}: options are written name=value")
    return name, value


def _positive(value: str) -> float:
    seconds = float(value)
    if not 0 < seconds < math.inf:
        raise ValueError(f"{value} is not a number of seconds")
    return seconds
