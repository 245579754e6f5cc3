"""The preemption notice sources of a node, from the texts that its provider gives: no other source is used.

    aws   aws-rebalance   gcp   gcp-maintenance,seconds=3600   azure   slurm,USR1=120,TERM=30

A text is a name and options behind commas. ``url=`` is another place to ask than the cloud's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module

from .local import Signals, number_of
from .source import NoticeSource

WITHDRAWN = "withdrawn"  # in place of a signal's seconds: it takes back what another one has announced
_SIGNALS = ("signal", "slurm")
_CLOUDS = {  # modules that are imported where they are asked for: an HTTP client's imports take 20 ms
    "aws": ("aws", "SpotAction"),
    "aws-rebalance": ("aws", "Rebalance"),
    "gcp": ("gcp", "Preempted"),
    "gcp-maintenance": ("gcp", "Maintenance"),
    "azure": ("azure", "ScheduledEvents"),
}


def sources(texts: Sequence[str]) -> list[NoticeSource]:
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
    return [number for source in sources(texts) if isinstance(source, Signals) for number in source.numbers]


def _signals(name: str, pairs: dict[str, str], text: str) -> Signals:
    try:
        seconds = {number_of(each): _positive(value) for each, value in pairs.items() if value != WITHDRAWN}
        withdrawn = [number_of(each) for each, value in pairs.items() if value == WITHDRAWN]
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from error
    if not seconds:
        raise ValueError(f"{text!r}: say which signals, and the seconds that each leaves: {name},USR1=120")
    return Signals(seconds, name=name, withdrawn=withdrawn)


def _cloud(name: str, pairs: dict[str, str], text: str) -> NoticeSource:
    given: dict[str, object] = {}
    for option, value in pairs.items():
        if option == "url" and value.startswith("http://"):
            given["url"] = value
        elif option == "seconds" and name == "gcp-maintenance":
            given["seconds"] = _positive(value)
        else:
            raise ValueError(f"{text!r}: it has no option {option}={value}")
    module, kind = _CLOUDS[name]
    source: NoticeSource = getattr(import_module(f".{module}", __package__), kind)(**given)
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
