"""Failure detector: distinguish a lost node from a failure of this computer's own network. Pure.

A silent node counts as lost after a while; if no host at all answers, this computer counts as cut off.

DETECTOR-1: a node whose machine closed the connection, or that is silent while other nodes are not, is lost after
    ``reconnect_s``. A node whose connection was closed by a host in between counts as silent.
DETECTOR-2: while all connections have been silent since about the same time, and no other host answers either, no
    node is lost before ``lease_s``.
DETECTOR-3: once any node answers, even a new one, the nodes that fell silent together have `RETURN_S` from then on to
    reconnect. The time starts again whenever another of them reconnects. The same holds when another host answers.
DETECTOR-4: if another host answers as soon as all nodes are silent, the network was never down: the nodes are lost
    ``reconnect_s`` after that answer.
DETECTOR-5: time during which this program stalled, and could read nothing, does not count.
"""

from __future__ import annotations

from .interfaces import NodeId

# seconds in which nodes may reconnect after the network came back; a try that began without a network may hang for 10
# s, as TCP doubles its pauses
RETURN_S = 15.0


class FailureDetector:
    def __init__(self, *, reconnect_s: float, lease_s: float) -> None:
        self._reconnect_s = reconnect_s
        self._lease_s = max(lease_s, reconnect_s)
        self._return_s = max(RETURN_S, reconnect_s)
        self._connected: set[NodeId] = set()
        # by disconnected node: the time of the disconnection, and whether the node had become silent
        self._away: dict[NodeId, tuple[float, bool]] = {}
        self._fell_at = 0.0  # when all connections were last found to be silent
        # when a host that is not a node answered, shortly after all connections had fallen silent (`_fell_at`)
        self._answered_at = 0.0
        self._cut_off = False
        # nodes that fell silent together with all other nodes, and have not reconnected since the network came back
        self._stranded: set[NodeId] = set()
        self._back_at = 0.0  # when the network came back, or when one of the stranded nodes last reconnected

    def connected(self, node: NodeId, now: float) -> None:
        """Handle that ``node`` is connected, for the first time or again."""
        self._connected.add(node)
        self._away.pop(node, None)
        if self._cut_off:
            self._cut_off = False
            self._stranded = set(self._away)
            self._back_at = now
        elif node in self._stranded:
            self._stranded.discard(node)
            self._back_at = now

    def dropped(self, node: NodeId, now: float, *, silent: bool) -> bool:
        """Handle the loss of a connection; return whether this makes all connections silent."""
        self._away[node] = (now, silent)
        fell = not self._cut_off and self.network_wide
        if fell:
            self._cut_off, self._fell_at = True, now
        return fell

    def answered(self, now: float) -> None:
        """Handle an answer from a host that is not a node. The answer shows that this computer's network works."""
        if now - self._fell_at <= self._reconnect_s and (self._cut_off or self._stranded):
            # a host answered soon after all nodes fell silent, so the network was never down; that a newly booted node
            # may have connected before this answer makes no difference
            self._cut_off = False
            self._stranded.clear()
            self._answered_at = now
        elif self._cut_off:
            self._cut_off = False
            self._stranded = set(self._away)
            self._back_at = now

    def stood_still(self, for_s: float) -> None:
        """Handle that this program stalled for ``for_s`` seconds until now, and could not read from its connections."""
        self._away = {node: (since + for_s, silent) for node, (since, silent) in self._away.items()}
        self._fell_at += for_s
        self._answered_at += for_s
        self._back_at += for_s

    @property
    def waits(self) -> bool:
        """Return whether the pool waits for any node to reconnect."""
        return bool(self._away)

    def ended(self, node: NodeId) -> None:
        self._connected.discard(node)
        self._away.pop(node, None)
        self._stranded.discard(node)

    @property
    def cut_off(self) -> bool:
        """Return whether no node answers, so that the reachability probe should run."""
        return self._cut_off and bool(self._away)

    @property
    def network_wide(self) -> bool:
        """Return whether all connections fell silent at about the same time, not counting nodes that are still missing
        from an earlier failure.
        """
        if not self._away or len(self._away) < len(self._connected):
            return False
        if not all(silent for _, silent in self._away.values()):
            return False
        since = [at for node, (at, _) in self._away.items() if node not in self._stranded]
        return not since or max(since) - min(since) <= self._reconnect_s

    def silent_for(self, node: NodeId, now: float) -> float:
        return now - self._away[node][0]

    def wake_at(self) -> float | None:
        """Return the time at which ``overdue`` must be called if no other event comes before."""
        return min(self._due().values()) if self._away else None

    def overdue(self, now: float) -> list[NodeId]:
        return [node for node, at in self._due().items() if now >= at]

    def _due(self) -> dict[NodeId, float]:
        if self._cut_off:
            return {node: since + self._lease_s for node, (since, _) in self._away.items()}
        return {
            node: max(since, self._back_at) + self._return_s
            if node in self._stranded
            else max(since, self._answered_at) + self._reconnect_s
            for node, (since, _) in self._away.items()
        }
