"""The orders to a node that become one message each, whatever runs there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...actors.interfaces import AttemptId, Looked, Peer, Report, StopAt
from ...providers.base import PreemptionNotice
from ..node.notices.watcher import NAME_CHARS, bounded
from ..wire import messages as wire

if TYPE_CHECKING:
    from .node_profiles import NodeProfiles
    from .node_stacks import NodeStacks


class PlainOrders:
    """A part of `NodeLink`."""

    stacks: NodeStacks
    profiles: NodeProfiles
    _pool_reports: Callable[[Sequence[Report]], None]

    def send(self, message: wire.Message) -> None:
        raise NotImplementedError

    def notify(self, notice: PreemptionNotice, peer: Peer | None = None) -> None:
        seconds = None if notice.seconds is None else bounded(notice.seconds)
        about = None if peer is None else wire.Peer(*peer)
        self.send(wire.PreemptionNotice(notice.source[:NAME_CHARS], seconds, about))

    def stop_at(self, stop: StopAt) -> None:
        self.send(wire.StopAt(*stop))

    def ping(self) -> None:
        self.send(self.profiles.ping())

    def heard(self, attempt: AttemptId) -> float | None:
        return self.stacks.quiet_s(attempt)

    def look(self, question: int, quiet_s: float) -> None:
        self.stacks.ask(lambda seen: self._pool_reports([Looked(question, seen)]), quiet_s=quiet_s)
