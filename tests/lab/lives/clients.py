"""A user's program in a process of its own, and what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

Word = dict[str, Any]


class Told(Protocol):
    """What a client is to do."""

    @property
    def name(self) -> str:
        """Of its pool."""

    def written(self) -> str:
        """As `json.loads` takes it."""


Wish = TypeVar("Wish", bound=Told)


class Late(Exception):
    """Something did not come about in time."""


def until(holds: Callable[[], object], within_s: float, what: str) -> None:
    """
    Raises:
        Late
    """
    last = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > last:
            raise Late(f"not within {within_s:g} s: {what}")
        time.sleep(0.02)


class Client(Generic[Wish]):
    """A process that carries out a wish; ``words`` are what it has said."""

    def __init__(
        self, module: str, wish: Wish, *, key: str, env: Mapping[str, str], before: Sequence[str], log: Path
    ) -> None:
        """``module``: the program. ``before``: a command that runs it."""
        self.wish, self.key, self.began, self.ended_at = wish, key, time.time(), 0.0
        self.words: list[Word] = []
        self.killed = False
        self._log = log
        self._new = threading.Condition()
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", module, wish.written()],
                env={**os.environ, **env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def said(self, what: str) -> list[Word]:
        return [word for word in self.words if word["what"] == what]

    def wait(self, what: str, within_s: float) -> bool:
        """Whether it has said that, before its end.

        Raises:
            Late: neither came about.
        """
        with self._new:
            if not self._new.wait_for(lambda: self.said(what) or self.ended_at, within_s):
                raise Late(f"{self.wish.name} did not say {what!r} within {within_s:g} s: {self.words[-2:]}")
        return bool(self.said(what))

    def go(self) -> None:
        """On, if it `waits`."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except (OSError, ValueError):  # it has ended
            pass

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """It alone, as the kernel's lack of memory would; safe to repeat."""
        if self.process.poll() is None:
            self.killed = number == signal.SIGKILL
            self.process.send_signal(number)

    def end(self, within_s: float) -> int:
        """Its exit status.

        Raises:
            Late: it has not ended; it is killed.
        """
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # faulthandler writes where it stands
            self.process.wait()
            raise Late(f"{self.wish.name} has not ended within {within_s:g} s\n{self.errors()[-6000:]}") from None
        finally:
            self._reading.join()
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                with suppress(BrokenPipeError):  # it ended before it had read its line
                    pipe.close()
        return self.process.returncode

    def errors(self) -> str:
        """What it wrote to its standard error."""
        return self._log.read_text(errors="replace")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._new:
                self.words.append(json.loads(line) if line.startswith("{") else {"what": "text", "text": line})
                self._new.notify_all()
        self.process.wait()
        with self._new:
            self.ended_at = time.time()
            self._new.notify_all()
