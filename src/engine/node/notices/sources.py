"""The sources of preemption notices: their interface, the sources for files and signals, and the names of sources.

A provider names the sources of its nodes by texts such as these: a name, then options after commas.

    aws   aws-rebalance   gcp   gcp-maintenance,seconds=3600   azure   slurm,USR1=120,TERM=30   file,path=/run/notice

The option ``url=`` replaces the address of the cloud's metadata service. Besides these sources, every node reads the
file ``preempt`` in its own folder.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from errno import EINVAL
from importlib import import_module
from pathlib import Path

WITHDRAWN = "withdrawn"  # in place of a signal's seconds: this signal withdraws the notice
FIRST_S, AT_MOST_S = 1.0, 30.0  # first and longest delay between requests to a source that does not answer
FILE_BYTES = 64  # maximum size of a notice file, which contains only a number
_SIGNALS = ("signal", "slurm")
_FILE = "file"
_CLOUDS = {  # source -> (module, class); a module is imported only when needed, because that takes 20 ms
    "aws": ("clouds", "SpotAction"),
    "aws-rebalance": ("clouds", "Rebalance"),
    "gcp": ("clouds", "Preempted"),
    "gcp-maintenance": ("clouds", "Maintenance"),
    "azure": ("clouds", "ScheduledEvents"),
}

# A callback for a source's current state: the seconds until the machine's end, or None if there is no notice (any
# more). A repeated state has no effect.
Report = Callable[[float | None], None]


def named(texts: Sequence[str]) -> list[NoticeSource]:
    """Return the sources that the texts name.

    Raises:
        ValueError: a text is invalid, or names no source; in the second case the error lists the possible names.
    """
    sources: list[NoticeSource] = []
    for text in texts:
        name, *options = text.split(",")
        pairs = dict(_pair(option, text) for option in options)
        if name in _SIGNALS:
            sources.append(_signals(name, pairs, text))
        elif name in _CLOUDS:
            sources.append(_cloud(name, pairs, text))
        elif name == _FILE:
            sources.append(_file(pairs, text))
        else:
            raise ValueError(f"{text!r} is no source of notices: {', '.join([*_CLOUDS, *_SIGNALS, _FILE])}")
    if len({source.name for source in sources}) < len(sources):
        raise ValueError(f"a source of notices is there twice: {', '.join(texts)}")
    return sources


def signals(texts: Sequence[str]) -> list[int]:
    """Return the numbers of all signals that the sources named by ``texts`` use."""
    return [number for source in named(texts) if isinstance(source, Signals) for number in source.meanings]


class Unanswered(Exception):
    """Raised if a source gives no valid answer. It does not mean that the machine will end."""


class PolledSource:
    """A source that is polled every ``every_s`` seconds, and less often while it does not answer.

    The first request without an answer is logged, and the next answer too.
    """

    name: str
    every_s: float
    at_most_s: float | None = None  # longest delay while no answer arrives; None: `AT_MOST_S`
    _failures = 0

    async def ask(self, report: Report) -> None:
        """Send one request, and report its result. If the request fails, the last report stays valid."""
        raise NotImplementedError

    async def watch(self, report: Report) -> None:
        while True:
            try:
                await self.ask(report)
            except Exception as error:  # noqa: BLE001  a bug of Outrider must not stop the polling either
                self._failures += 1
                if self._failures == 1:
                    text = str(error) if isinstance(error, Unanswered) else f"{type(error).__name__}: {error}"
                    self._log(f"{text}; it is asked again")
                most_s = AT_MOST_S if self.at_most_s is None else self.at_most_s
                from random import uniform  # imported here because few nodes need it

                delay = min(most_s, FIRST_S * 2.0 ** min(self._failures - 1, 16))
                await asyncio.sleep(delay * uniform(0.5, 1.0))  # noqa: S311  not a secret: it spreads the requests of many nodes
            else:
                if self._failures:
                    self._log(f"answers again, after {self._failures} tries")
                self._failures = 0
                await asyncio.sleep(self.every_s)

    def _log(self, text: str) -> None:
        with suppress(OSError):  # a full disk must not end the polling
            print(f"notices: {self.name}: {text}", file=sys.stderr, flush=True)


class PreemptFile(PolledSource):
    """A source of notices that is a file with the number of seconds until this machine ends.

    The seconds count from the file's modification time, also when the file is written again. Removing the file
    withdraws the notice. An empty file is ignored, because it is still being written. A file that is unreadable or
    contains no number is logged and ignored.
    """

    every_s = 1.0  # polling takes 10 us
    at_most_s = 1.0
    _seen: tuple[str, int] | None = None  # (content, modification time) of the last report

    def __init__(self, path: Path, name: str = "file") -> None:
        self.name = name
        self._path = path

    async def ask(self, report: Report) -> None:
        try:
            text, written_ns = _small_file(self._path)
        except FileNotFoundError:
            if self._seen is not None:
                self._seen = None
                report(None)
            return
        except OSError as error:
            raise Unanswered(f"{self._path} cannot be read: {error.strerror}") from error
        if not text.strip() or self._seen == (text, written_ns):
            return
        seconds = _seconds_in(text)
        if seconds is None:
            raise Unanswered(f"{self._path} has {text[:20]!r} in it, which is no number of seconds")
        self._seen = text, written_ns
        age_s = time.time() - written_ns / 1e9
        report(max(0.0, seconds - age_s) if age_s > 2 * self.every_s else seconds)


def _small_file(path: Path) -> tuple[str, int]:
    """Return the first bytes of a file as text, and its modification time (ns). Does not block if the path is a pipe.

    Raises:
        OSError: the path is missing, unreadable, or not a regular file.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(EINVAL, "it is no file")
        return os.read(file, FILE_BYTES + 1).decode("ascii", "replace"), status.st_mtime_ns
    finally:
        os.close(file)


def _seconds_in(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if len(text) <= FILE_BYTES and math.isfinite(seconds) else None


class Signals:
    """A source of notices that are signals to this process, as Slurm sends them.

    Slurm sends the signal of ``--signal`` at the requested time before the job's time limit, and SIGTERM before it
    kills a preempted job (GraceTime, an option of the partition). A signal contains no time, so ``meanings`` has the
    seconds until the machine's end for each signal; None if the signal withdraws the notice. Every process of the job
    receives the signals: `process.shield` protects them.
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


NoticeSource = PolledSource | Signals  # both have `watch`, which runs until it is cancelled


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


def _file(pairs: dict[str, str], text: str) -> PreemptFile:
    others = set(pairs) - {"path", "name"}
    path = pairs.get("path", "")
    if others or not path.startswith("/"):
        raise ValueError(f"{text!r}: say which file, by its whole path without commas: file,path=/run/notice")
    name = pairs.get("name", "notice-file")
    if name == _FILE:
        raise ValueError(f"{text!r}: the file of the node's own folder has this name")
    return PreemptFile(Path(path), name)


def _cloud(name: str, pairs: dict[str, str], text: str) -> PolledSource:
    arguments: dict[str, object] = {}
    for option, value in pairs.items():
        if option == "url" and value.startswith("http://"):
            arguments["url"] = value
        elif option == "seconds" and name == "gcp-maintenance":
            arguments["seconds"] = _positive(value)
        else:
            raise ValueError(f"{text!r}: it has no option {option}={value}")
    module, kind = _CLOUDS[name]
    source: PolledSource = getattr(import_module(f".{module}", __package__), kind)(**arguments)
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
