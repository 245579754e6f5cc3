"""What every life does with its clients and its dice."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from .clients import Client, Late


@dataclass(slots=True, kw_only=True)
class Life:
    """``dice``: all that is random in it. ``found``: what the play itself has seen, each beginning with its rule."""

    dice: random.Random
    found: list[str] = field(default_factory=list)
    within_s: dict[str, float] = field(default_factory=dict)  # of a client's end, by its key
    hung: set[str] = field(default_factory=set)  # the keys of the clients that did not end in their time

    def expect(self, holds: object, story: str) -> None:
        """``story``: what is broken if it does not hold, with its rule."""
        if not holds:
            self.found.append(story)

    def passes(self, low_s: float, high_s: float) -> None:
        """So much time, by the dice."""
        time.sleep(self.dice.uniform(low_s, high_s))

    def end(self, client: Client[Any]) -> None:
        """Wait for its end; one that has not ended in its time is remembered."""
        try:
            client.end(self.within_s[client.key])
        except Late:
            self.hung.add(client.key)

    def kill(self, client: Client[Any], number: signal.Signals = signal.SIGKILL) -> None:
        client.kill(number)
        self.end(client)
