"""Requests to a node that become exactly one message each, and need no state of the node's attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ...actors.interfaces import AttemptId, Looked, NodeFacts, NodeId, Order, Peer, Report, StopAt
from ...providers.base import PreemptionNotice
from ..wire import messages as wire
from ..wire.codec import SharedFrame
from ..wire.session import attempt_digest

if TYPE_CHECKING:
    import asyncio

    from ..wire.session import Session
    from .instance_views import InstanceViews
    from .node_profiles import NodeProfiles
    from .node_stacks import NodeStacks


class PlainOrders:
    """The base class of `NodeLink` with the requests that become exactly one message each."""

    node: NodeId
    stacks: NodeStacks
    profiles: NodeProfiles
    _views: InstanceViews
    orders: dict[int, Order]
    _held_back: dict[int, asyncio.Task[None]]
    _fetching: dict[int, None]
    # number of a ping -> the attempts that were on the node when the ping was sent
    _pinged: dict[int, tuple[int, ...]]
    _named = False  # whether the node's last view listed its peers
    _pool_reports: Callable[[Sequence[Report]], None]

    session: Session

    def send(self, message: wire.Message) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        raise NotImplementedError

    def _schedule(self) -> None:
        raise NotImplementedError

    def _runs(self, attempt: int) -> bool:
        raise NotImplementedError

    def view(self, members: Sequence[tuple[NodeId, NodeFacts]]) -> None:
        view = self._views.view(self.node, members)
        if view is not None:
            self._named = self._views.names_peers
            self.session.send_shared(SharedFrame(*view))
            self._schedule()

    def place(self, rank: int, facts: NodeFacts, *, nodes: int, accelerators: int) -> None:
        self._named = False
        self.send(wire.View(self._views.place(rank, facts, nodes=nodes, accelerators=accelerators)))

    def notify(self, notice: PreemptionNotice, peer: Peer | None = None) -> None:
        from ..node.notices.watcher import NAME_CHARS, bounded  # imported here: few pools get a notice

        seconds = None if notice.seconds is None else bounded(notice.seconds)
        about = None if peer is None else wire.Peer(*peer)
        self.send(wire.PreemptionNotice(notice.source[:NAME_CHARS], seconds, about))

    def stop_at(self, stop: StopAt) -> None:
        self.send(wire.StopAt(*stop))

    def is_sent(self, attempt: AttemptId) -> bool:
        return attempt not in self._held_back

    def compare_ports(self, taken: int) -> None:
        unsent = (order for order in map(self.orders.get, self._held_back) if order is not None)
        ports = (order.world.port_of(order.rank) for order in unsent if order.world is not None)
        self.send(wire.PortsTaken(taken, tuple(port for port in ports if port)))

    def ping(self, number: int | None = None) -> None:
        """Send a ping. ``number``: a unique number; None: the next number of the measurement of the clock's offset."""
        number = self.profiles.ping().sent_ms if number is None else number
        self._pinged[number] = tuple(self._sent_attempts())
        self.session.send(wire.Ping(number, self.session.sent))
        self.flush()

    def ponged(self, pong: wire.Pong) -> None:
        """Compare the attempts that the node has with those that it should have. If they differ, send it the list.

        Both sides compare a digest of the attempts that were sent before the ping and have not ended. Reports of ended
        attempts arrive before the pong.
        """
        self.profiles.ponged(pong)
        sent = self._pinged.pop(pong.sent_ms, None)
        if sent is None or not pong.attempts:
            return
        for earlier in [number for number in self._pinged if number < pong.sent_ms]:
            del self._pinged[earlier]
        if attempt_digest(each for each in sent if self._runs(each)) != pong.attempts:
            self.send(wire.Compare(tuple(self._sent_attempts())))

    def _sent_attempts(self) -> Iterator[int]:
        return (attempt for attempt in self.orders if self._runs(attempt))

    def heard(self, attempt: AttemptId) -> float | None:
        return self.stacks.quiet_s(attempt)

    def look(self, question: int, quiet_s: float) -> None:
        self.stacks.ask(lambda seen: self._pool_reports([Looked(question, seen)]), quiet_s=quiet_s)
