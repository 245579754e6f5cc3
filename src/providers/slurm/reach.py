"""Decide what carries the connections to steps where ``reach="auto"``: SSH where nodes let the user in, else srun.
No I/O, no clock.

REACH-1: a node is reached by SSH only after it has let the user in, once.
REACH-2: no node waits for an answer for longer than `PATIENCE_S` after its step can be reached.
REACH-3: a site that has let nobody in, on any node of a job, is not asked again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

PATIENCE_S = 0.5
ASK_S = 3.0  # for which a question lasts: a firewall may drop what it does not like


class WaysIn:
    """A record of the nodes that let the user in."""

    def __init__(self) -> None:
        self._probing: set[str] = set()
        self._open: set[str] = set()
        self._ready_at: dict[str, float] = {}
        self._closed = False

    def ask(self, nodes: Iterable[str]) -> list[str]:
        """Return the nodes to probe now; call `answered` or `failed` afterwards."""
        new = [] if self._closed else [node for node in nodes if node not in self._probing | self._open]
        self._probing.update(new)
        return new

    def answered(self, nodes: Collection[str], lets_in: Collection[str]) -> None:
        self._probing.difference_update(nodes)
        self._open.update(lets_in)
        self._closed = not self._open

    def failed(self, nodes: Collection[str]) -> None:
        """Note that the probe of these nodes gave no answer."""
        self._probing.difference_update(nodes)

    def by_ssh(self, node: str, now: float) -> bool | None:
        """Return whether a node whose step can be reached is reached by SSH; None: this is not known yet."""
        if node in self._open:
            return True
        ready_at = self._ready_at.setdefault(node, now)
        if node in self._probing and now - ready_at < PATIENCE_S:
            return None
        return False
