"""A tracker that posts the events of a run to an address as signed JSON messages, each with a unique key.

A repeated delivery has the same key, so a receiver that remembers keys processes each delivery once. The format is in
docs/guides/trackers.md. Each message contains the format's `VERSION`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import mimetypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar
from urllib.parse import urlsplit

from ....actors import events as ev
from ....lazy_dataclass import dataclass
from ...api.checks import checks_options, refuse, shown
from ...api.secrets import Secret, revealed
from ..runs.lines import SAVED
from .base import (
    Artifact,
    End,
    Point,
    Ranks,
    Sender,
    TrackedRun,
    Tracker,
    check_address,
    check_header,
    check_name,
    check_ranks,
)

VERSION = 1
EVENTS = frozenset(
    each.name
    for each in (
        ev.GenerationLost,
        ev.NodeFailed,
        ev.NodeLost,
        ev.NodeNoticed,
        ev.NodeNoticeWithdrawn,
        ev.PoolIdleTooLong,
        ev.PoolReady,
        ev.Stalled,
    )
) | {SAVED}


@checks_options
@dataclass(frozen=True, slots=True)
class Webhook(Tracker):
    """An address to which messages about a run are posted: its begin, params, metrics, artifacts, losses and end.

    Args:
        url: The address. It may be a `Secret`, because some addresses contain a token. No record contains the address.
        secret: The key by which each delivery is signed (header ``Outrider-Signature``). Default: no signature.
        headers: Further headers, such as ``Authorization``. No record contains a value that is a `Secret`.
        metrics: False: no points are sent.
        ranks: The ranks whose points are sent: ``"head"``: rank 0; ``"all"``: all ranks, with the rank in the points'
            names; ``"mean"``: the mean of each step.
        name: The name of the tracker, unique in its pool.

    Raises:
        SpecError: An option is not valid.
    """

    kind: ClassVar[str] = "webhook"

    url: Secret | str = field(repr=False)
    secret: Secret | str | None = field(default=None, repr=False)
    headers: Mapping[str, Secret | str] = field(default_factory=dict, repr=False)
    metrics: bool = True
    ranks: Ranks = "head"
    name: str = "webhook"

    def __post_init__(self) -> None:
        if not isinstance(self.url, Secret):
            object.__setattr__(self, "url", Secret(check_address("Webhook", self.url, "https://host/hook")))
        check_address("Webhook", revealed(self.url), "https://host/hook")
        if not isinstance(self.secret, Secret | str | None):
            refuse(f"Webhook(secret=...) takes a text or a Secret, not {shown(type(self.secret))}.")
        if isinstance(self.secret, str):
            object.__setattr__(self, "secret", Secret(self.secret))
        if not isinstance(self.headers, Mapping) or not all(
            isinstance(name, str) and isinstance(value, str | Secret) for name, value in self.headers.items()
        ):
            refuse("Webhook(headers=...) takes names and texts, as in {'Authorization': Secret.env('HOOK')}.")
        for name, value in self.headers.items():
            check_header(f"Webhook(headers=...): {shown(name)}", name, revealed(value))
        check_ranks("Webhook", self.ranks)
        check_name("Webhook", self.name)

    @property
    def host(self) -> str:
        """The part of the address that may appear in output: host and port."""
        return urlsplit(revealed(self.url)).netloc.rpartition("@")[2]

    def open(self, run: TrackedRun) -> Sender:
        return (WebhookSender if self.metrics else _WithoutPoints)(self, run)


class WebhookSender(Sender):
    """Sends one run to a webhook."""

    events = EVENTS

    def __init__(self, tracker: Webhook, run: TrackedRun, now: Callable[[], float] = time.time) -> None:
        self._run, self._now = run, now
        self._secret = None if tracker.secret is None else revealed(tracker.secret).encode()
        headers = {name: revealed(value) for name, value in tracker.headers.items()}
        from .http_calls import Calls  # imported here, as the import is slow and a pool's program does not need it

        self._calls = Calls(revealed(tracker.url), headers)

    def begun(self) -> None:
        run = self._run
        if run.ids.get("begun"):
            return  # an earlier process has already sent this message
        about = {
            "began": run.began,
            "user": run.user,
            "host": str((run.about.get("owner") or {}).get("host", "")),
            "provider": run.provider,
            "placement": run.placement,
            "machines": list(run.machines),
            "argv": list(run.about.get("argv") or ()),
            "git": {each: run.git[each] for each in ("commit", "branch", "changed") if each in run.git},
        }
        self._post("begun", about)
        run.keep("begun", "1")

    def params(self, values: Mapping[str, Any]) -> None:
        self._post("params", {"params": values})

    def points(self, points: Sequence[Point]) -> None:
        rows = [
            {
                "name": point.name,
                "value": point.value if math.isfinite(point.value) else str(point.value),
                "step": point.step,
                "at": point.at,
                "rank": point.rank,
                "node": point.node,
                "function": point.function,
                "job": point.job,
                "generation": point.generation,
            }
            for point in points
        ]
        self._post("metrics", {"metrics": rows})

    def artifact(self, artifact: Artifact) -> None:
        facts = {
            "name": artifact.name,
            "path": str(artifact.path.relative_to(self._run.directory)),
            "type": mimetypes.guess_type(artifact.path.name)[0] or "application/octet-stream",
            "size_bytes": artifact.size_bytes,
            "sha256": artifact.sha256,
            "at": artifact.at,
            "rank": artifact.rank,
        }
        self._post("artifact", {"artifact": facts})

    def event(self, event: Mapping[str, Any]) -> None:
        self._post("event", {"event": dict(event)})

    def ended(self, end: End) -> None:
        facts = {"state": end.state, "at": end.at, "exit_code": end.exit_code, "error": end.error}
        self._post("ended", {**facts, "spent_usd": end.spent_usd})

    def _post(self, kind: str, facts: Mapping[str, Any]) -> None:
        run = {"id": self._run.id, "name": self._run.name}
        body = json.dumps(
            {"version": VERSION, "kind": kind, "key": self.key, "run": run, **facts}, default=str
        ).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": self.key}
        if self._secret is not None:
            at = str(int(self._now()))
            headers["Outrider-Timestamp"] = at
            headers["Outrider-Signature"] = f"v1={signature(self._secret, at, body)}"
        self._calls.send("POST", "", body, headers)


class _WithoutPoints(WebhookSender):
    points = Sender.points


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """Return the HMAC-SHA256 of ``timestamp.body`` in hexadecimal.

    In the header `Outrider-Signature` it follows ``v1=``.
    """
    return hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
