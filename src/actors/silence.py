"""Whose network is it: pure. A silent node is lost after a while; when all are silent, this computer is cut off.

SILENCE-1: a node whose connection was closed, or that is silent while others are heard, is lost after ``reconnect_s``.
SILENCE-2: while every connection is silent since about the same time, none is lost before ``lease_s``.
SILENCE-3: once one is heard again, the others have ``reconnect_s`` from then.
"""

from __future__ import annotations

from .ports import NodeId


class Silence:
    def __init__(self, *, reconnect_s: float, lease_s: float) -> None:
        self._reconnect_s = reconnect_s
        self._lease_s = max(lease_s, reconnect_s)
        self._connected: set[NodeId] = set()
        self._away: dict[NodeId, tuple[float, bool]] = {}  # since when, and whether it fell silent
        self._back_at: float | None = None  # the network, after all had been silent
        self._cut_off = False

    def connected(self, node: NodeId, now: float) -> None:
        """For the first time, or again."""
        self._connected.add(node)
        if self._away.pop(node, None) is not None and self._cut_off:
            self._cut_off = False
            self._back_at = now

    def dropped(self, node: NodeId, now: float, *, silent: bool) -> bool:
        """True: by this the whole network has fallen silent."""
        self._away[node] = (now, silent)
        fell = not self._cut_off and self.network_wide
        self._cut_off = self._cut_off or fell
        return fell

    def ended(self, node: NodeId) -> None:
        self._connected.discard(node)
        self._away.pop(node, None)

    @property
    def network_wide(self) -> bool:
        """Every connection is silent, since about the same time."""
        if not self._away or len(self._away) < len(self._connected):
            return False
        if not all(silent for _, silent in self._away.values()):
            return False
        since = [at for at, _ in self._away.values()]
        return max(since) - min(since) <= self._reconnect_s

    def wake_at(self) -> float | None:
        """When ``overdue`` has something to say, if nothing else happens before."""
        return min(self._due().values(), default=None)

    def overdue(self, now: float) -> list[NodeId]:
        """The nodes to be given up now."""
        return [node for node, at in self._due().items() if now >= at]

    def _due(self) -> dict[NodeId, float]:
        if self.network_wide:
            return {node: since + self._lease_s for node, (since, _) in self._away.items()}
        back_at = self._back_at
        return {
            node: (since if back_at is None else max(since, back_at)) + self._reconnect_s
            for node, (since, _) in self._away.items()
        }
