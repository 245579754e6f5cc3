"""A plugin's two halves beside the tasks: their arguments, and the messages between them.

The node's half runs once on each node, in a process of its own beside the task slots, from before the node's first task
until the node leaves the pool. The client's half runs with the pool. Messages are any objects that can be pickled; they
go over the pool's own connections, in order, and survive a reconnect.
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
    """The result of a plugin's half on a node: environment variables for tasks, and accelerators for everybody."""

    env: Mapping[str, str] = field(default_factory=dict)  # for every task of the node
    accelerators: tuple[tuple[str, float], ...] | None = None  # (type, memory in GB) each; None: unchanged


@dataclass(slots=True)
class NodeSide:
    """The argument of a plugin's half on a node: facts about the node, and messages to and from the client's half."""

    pool: str
    node: int  # never reused in a pool
    hostname: str
    address: str  # how the other nodes reach it
    accelerators: tuple[tuple[str, float], ...]
    directory: Path  # private, and removed with the node
    tell: Callable[[Any], None]
    """Send a message to the client's half; from any thread, without waiting. If that half does not keep up, messages
    wait in this node's memory, and those of the node's other plugins behind them."""
    heard: Callable[[Any], None] = field(default=lambda _: None)
    """Called with each message of the client's half, in order, in one thread. Set it before the half is set up."""


class Attaching(Protocol[H_co]):
    """A plugin with a half at the client that gives its users an ``H_co``."""

    @property
    def name(self) -> str: ...

    def attach(self, context: PluginContext) -> AbstractAsyncContextManager[H_co]: ...


class Joined(NamedTuple):
    """A node has joined, and the plugin's half on it is set up."""

    node: NodeId
    facts: NodeFacts


class Left(NamedTuple):
    """A node has left, or the plugins' halves on it have ended."""

    node: NodeId


class Heard(NamedTuple):
    """The half on a node has sent this message."""

    node: NodeId
    message: Any


News = Joined | Left | Heard


class PluginContext(Protocol):
    """The argument of a plugin's half at the client: the pool, on the pool's event loop."""

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
        """Iterate over nodes that join and leave, and messages of their halves. Begins with the present nodes.

        For one consumer. What it has not taken is bounded per node (256 messages, 1 MiB): more waits on the node.
        """
        ...

    def tell(self, node: NodeId, message: Any) -> None:
        """Send a message to the plugin's half on ``node``; if the node is gone, the message is lost."""
        ...

    async def forward(self, node: NodeId, port: int) -> str:
        """Return an address, ``host:port``, by which this computer reaches a port on ``node``.

        For a remote node it is a port of this computer's loopback interface, forwarded through the pool's own
        connection until the pool ends.
        """
        ...
