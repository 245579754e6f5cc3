"""The interface of a preemption notice source: something that knows of this machine's end before it comes."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from typing import Protocol

FIRST_S, AT_MOST_S = 1.0, 30.0  # between two questions while there is no answer

Report = Callable[[float | None], None]  # the seconds that are left; None: there is no notice, or not any more


class NoticeSource(Protocol):
    @property
    def name(self) -> str: ...

    async def watch(self, report: Report) -> None:
        """Run until cancelled. Reporting the same again costs nothing: only changes count."""
        ...


class Unanswered(Exception):
    """Raised when the service did not answer, or not as it should: that says nothing about the machine."""


class PolledSource:
    """A service that is asked again and again, less often while it does not answer.

    The beginning and the end of a failure are logged.
    """

    def __init__(self, name: str, *, every_s: float) -> None:
        self.name = name
        self._every_s = every_s
        self._failures = 0

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
                await asyncio.sleep(self._every_s)

    def _log(self, text: str) -> None:
        print(f"notices: {self.name}: {text}", file=sys.stderr, flush=True)
