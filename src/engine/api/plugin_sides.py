"""A plugin's two halves beside the tasks: what they are given, and the messages between them.

The node's half runs once on each node, in a process of its own beside the task slots, from before the node's first task
until the pool leaves the node. The client's half runs with the pool. Messages between them are any objects that can be
pickled; they go over the pool's own connections, in order, and outlive a reconnect.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from ...actors.ports import NodeFacts, NodeId

if TYPE_CHECKING:
    from ..pool import Pool

H_co = TypeVar("H_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Setup:
    """What a plugin's half on a node has set up there: for tasks, variables; for everybody, the accelerators."""

    env: Mapping[str, str] = field(default_factory=dict)  # of every task of the node
    accelerators: tuple[tuple[str, float], ...] | None = None  # (type, memory in GB) each; None: as they were


@dataclass(slots=True)
class NodeSide:
    """What a plugin's half on a node is given."""

    pool: str
    node: int  # never used twice in a pool
    hostname: str
    address: str  # by which the other nodes reach it
    accelerators: tuple[tuple[str, float], ...]
    directory: Path  # private, and gone with the node
    tell: Callable[[Any], None]
    """A message to the client's half; from any thread, at once. When that half does not keep up, messages wait in this
    node's memory, and those of the node's other plugins behind them."""
    heard: Callable[[Any], None] = field(default=lambda _: None)
    """Called with each message from the client's half, in order, in one thread: set it before the half is set up."""


class Attaching(Protocol[H_co]):
    """A plugin with a half at the client that gives its users an ``H_co``."""

    @property
    def name(self) -> str: ...

    def attach(self, site: PluginContext) -> AbstractAsyncContextManager[H_co]: ...


class Joined(NamedTuple):
    """A node is there, and the plugin's half on it is set up."""

    node: NodeId
    facts: NodeFacts


class Left(NamedTuple):
    """A node is not there any more, or the plugins' halves on it are not."""

    node: NodeId


class Heard(NamedTuple):
    """The half on a node has told this."""

    node: NodeId
    message: Any


News = Joined | Left | Heard


class PluginContext(Protocol):
    """What a plugin's half at the client is given, on the pool's event loop."""

    @property
    def pool(self) -> Pool: ...

    @property
    def core(self) -> Any:
        """For Outrider's own plugins."""
        ...

    @property
    def slots(self) -> int:
        """Of all nodes that are ready, together."""
        ...

    def news(self) -> AsyncIterator[News]:
        """What becomes of the nodes, and what their halves tell; begins with those that are there. One consumer.

        What it has not taken is bounded for each node (256 messages, 1 MiB): more waits on the node.
        """
        ...

    def tell(self, node: NodeId, message: Any) -> None:
        """To the half on ``node``; nobody hears it if the node has gone."""
        ...

    async def forward(self, node: NodeId, port: int) -> str:
        """An address, ``host:port``, by which this computer reaches a port that somebody on ``node`` listens on.

        On a remote node through the pool's own connection, from a port of this computer's loopback interface, until
        the pool ends.
        """
        ...
