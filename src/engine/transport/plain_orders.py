"""The orders to a node that become one message each, whatever runs there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...actors.interfaces import AttemptId, Looked, NodeFacts, NodeId, Order, Peer, Report, StopAt
from ...providers.base import PreemptionNotice
from ..wire import messages as wire
from ..wire.codec import SharedFrame

if TYPE_CHECKING:
    import asyncio

    from ..wire.session import Session
    from .instance_views import InstanceViews
    from .node_profiles import NodeProfiles
    from .node_stacks import NodeStacks


class PlainOrders:
    """A part of `NodeLink`."""

    node: NodeId
    stacks: NodeStacks
    profiles: NodeProfiles
    _views: InstanceViews
    orders: dict[int, Order]
    _held_back: dict[int, asyncio.Task[None]]
    _named = False  # whether the last view of the node named its peers
    _pool_reports: Callable[[Sequence[Report]], None]

    session: Session

    def send(self, message: wire.Message) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        raise NotImplementedError

    def _schedule(self) -> None:
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
        from ..node.notices.watcher import NAME_CHARS, bounded  # few pools ever have a notice

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

    def ping(self) -> None:
        self.session.send(self.profiles.ping())
        self.flush()

    def heard(self, attempt: AttemptId) -> float | None:
        return self.stacks.quiet_s(attempt)

    def look(self, question: int, quiet_s: float) -> None:
        self.stacks.ask(lambda seen: self._pool_reports([Looked(question, seen)]), quiet_s=quiet_s)
