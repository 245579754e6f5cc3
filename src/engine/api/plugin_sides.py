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
    """The result of a plugin's half on a node: environment variables for its tasks, and accelerators for everybody."""

    env: Mapping[str, str] = field(default_factory=dict)  # of every task of the node
    accelerators: tuple[tuple[str, float], ...] | None = None  # (type, memory in GB) each; None: as they were


@dataclass(slots=True)
class NodeSide:
    """The node as a plugin's half there is given it: facts about it, and the messages to and from the client's half."""

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
    """The plugin context: the pool as a plugin's half at the client sees it, on the pool's event loop."""

    @property
    def pool(self) -> Pool: ...

    @property
    def core(self) -> Any:
        """The open pool, for Outrider's own plugins."""
        ...

    @property
    def slots(self) -> int:
        """The number of slots of all ready nodes together."""
        ...

    def news(self) -> AsyncIterator[News]:
        """Iterate over nodes that join and leave and over their halves' messages; begins with the nodes that are there.
        One consumer.

        What it has not taken is bounded for each node (256 messages, 1 MiB): more waits on the node.
        """
        ...

    def tell(self, node: NodeId, message: Any) -> None:
        """Send a message to the plugin's half on ``node``; if the node has gone, the message is lost."""
        ...

    async def forward(self, node: NodeId, port: int) -> str:
        """An address, ``host:port``, by which this computer reaches a port that somebody on ``node`` listens on.

        On a remote node through the pool's own connection, from a port of this computer's loopback interface, until
        the pool ends.
        """
        ...
