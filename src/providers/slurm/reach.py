"""Decide how to connect to steps with ``reach="auto"``: by SSH to nodes that accept the user's login, else by srun. No
I/O, no clock.

REACH-1: the client connects to a node by SSH only after the node has accepted the user's login once.
REACH-2: after a step can be reached, the client waits at most `PATIENCE_S` for the probe of its node's SSH server.
REACH-3: a site that has refused the user's login on all nodes of a job is not probed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

PATIENCE_S = 0.5
ASK_S = 3.0  # the limit for one probe, in seconds: a firewall may drop its packets


class WaysIn:
    """A record of the nodes that accept the user's SSH login."""

    def __init__(self) -> None:
        self._probing: set[str] = set()
        self._open: set[str] = set()
        self._ready_at: dict[str, float] = {}
        self._closed = False

    def ask(self, nodes: Iterable[str]) -> list[str]:
        """Return the nodes to probe for SSH now. Call `answered` or `failed` when the probe has ended."""
        new = [] if self._closed else [node for node in nodes if node not in self._probing | self._open]
        self._probing.update(new)
        return new

    def answered(self, nodes: Collection[str], lets_in: Collection[str]) -> None:
        self._probing.difference_update(nodes)
        self._open.update(lets_in)
        self._closed = not self._open

    def failed(self, nodes: Collection[str]) -> None:
        """Record that the probe of these nodes gave no answer."""
        self._probing.difference_update(nodes)

    def by_ssh(self, node: str, now: float) -> bool | None:
        """Return whether to connect to the step on ``node`` by SSH. None: unknown so far. Call only when the step can
        be reached.
        """
        if node in self._open:
            return True
        ready_at = self._ready_at.setdefault(node, now)
        if node in self._probing and now - ready_at < PATIENCE_S:
            return None
        return False
