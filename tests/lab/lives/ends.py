"""What no client may show, whatever befell it, decided from what it said.

CHAOS-1: a client that nobody kills ends within its time.
CHAOS-2: it ends whole, or with an `OutriderError` that fits what befell it: no error of a library, no group of errors.
CHAOS-3: what a broadcast returns is right.
CHAOS-4: a client that has all of its results is told of nothing but of a clean-up that failed.
CHAOS-11: nothing is written on standard error that is not for users: no traceback, no error nobody retrieved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CLEANUP = "CleanupError"
TEXT = 400  # characters of an error's that are shown
FATE = ("Traceback (most recent call last)", "never retrieved", "Exception ignored", "was destroyed but it is pending")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A client that has ended. ``fits``: errors that it may end with; ``whole``: it may also end without any.

    ``words``: what it said; ``errors``: its standard error; ``status``: None if it was killed because it did not end.
    """

    name: str
    rounds: int
    status: int | None
    ended_at: float
    killed: bool = False
    words: Sequence[Mapping[str, Any]] = ()
    errors: str = ""
    fits: frozenset[str] = frozenset()
    whole: bool = True

    def said(self, what: str) -> list[Mapping[str, Any]]:
        return [word for word in self.words if word["what"] == what]

    @property
    def raised(self) -> Mapping[str, Any] | None:
        return next(iter(self.said("raised")), None)

    @property
    def outcome(self) -> str:
        """For people: "whole", "killed", or the error's type."""
        if self.killed:
            return "killed"
        if self.raised is not None:
            return str(self.raised["type"])
        return "whole" if self.status == 0 else f"exit {self.status}"


def judged(client: Ended) -> list[str]:
    """What it has broken, in words that begin with the rule."""
    found = _end(client)
    wrong = [word for word in client.said("round") if not word["right"]]
    found += [f"CHAOS-3: round {word['number']} returned {word['results']}" for word in wrong]
    found += [
        f"CHAOS-11: {client.name} wrote {mark!r}:\n{client.errors[-3000:]}" for mark in FATE if mark in client.errors
    ]
    return found


def shown(error: Mapping[str, Any]) -> str:
    """An error as its client was told it, in a line; what is longer stands in the client's own words."""
    more = {name: error[name] for name in ("notes", "cause") if error[name]}
    inside = [shown(each) for each in error["inside"]]
    return f"{error['type']}: {error['text'][:TEXT]} {str(more)[:TEXT] if more else ''}{inside or ''}".strip()


def _end(client: Ended) -> list[str]:
    if client.status is None:
        return [f"CHAOS-1: {client.name} did not end:\n{client.errors[-6000:]}"]
    if client.killed:
        return []
    error = client.raised
    if error is None:
        if client.status != 0 or len(client.said("round")) < client.rounds:
            return [f"CHAOS-2: exit {client.status} after {[word['what'] for word in client.words]} {client.errors}"]
        return [] if client.whole else ["CHAOS-2: it ended whole, and should have been told"]
    found: list[str] = []
    if not error["typed"] or not client.fits & {*error["kinds"]}:
        found.append(f"CHAOS-2: {shown(error)}")
    if len(client.said("round")) >= client.rounds and client.said("done") and CLEANUP not in error["kinds"]:
        found.append(f"CHAOS-4: it had all of its results, and was told {shown(error)}")
    return found
