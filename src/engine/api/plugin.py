"""The plugin protocol: a plugin sets up a framework around tasks, so that functions need no code for that.

A plugin is an immutable, picklable object. Third parties register a factory under the entry point group
``outrider.plugins``; users then write ``plugins.<name>(...)``. In the task's process, in this order:

1. the variables of every ``env(info)`` are set, before any of the user's modules is imported;
2. every ``session(info)`` is entered, which sets up the framework before its first use;
3. the function is unpickled, and each ``wrap(function, info)`` wraps it; the first plugin's wrapper is the outermost;
4. the arguments are unpickled, and the wrapped function runs;
5. the sessions are left, also if the function raises; for a generator, when it ends or is closed.

A plugin of a pool may have two more parts, outside of tasks. ``node(side)`` runs once on each node, in a process of its
own, from before the node's first task until the node leaves the pool. ``attach(context)`` runs in the client. These
parts can send each other messages: any picklable objects, which are sent over the pool's connections, in order, and are
not lost by a reconnect.

Sessions of several plugins are entered in the order of the plugins, and left in reverse. A plugin that builds on other
plugins adds these before itself; if the user has passed a plugin of the same name, that one is used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, get_args

from ...lazy_dataclass import dataclass
from .checks import shown
from .errors import SpecError

if TYPE_CHECKING:
    from pathlib import Path

    from ...actors.interfaces import NodeFacts, NodeId
    from .calls import AsyncVerbs
    from .instance import InstanceInfo

H_co = TypeVar("H_co", covariant=True)
Ports = Literal["none", "head", "ranks"]


class Plugin:
    """The base class of plugins. Every method has a default that does nothing."""

    name: ClassVar[str] = ""
    # True: ranks wait for each other, so a broadcast that loses a rank restarts all of them
    collective: ClassVar[bool] = False
    # True: the framework cannot be shut down, so the task's process ends with the task
    fresh_process: ClassVar[bool] = False
    # True: as `fresh_process`, but only for ranks; processes of other tasks are reused
    fresh_ranks: ClassVar[bool] = False
    # True: the plugin, and not ``gpus=``, determines the devices that a task sees
    shares_devices: ClassVar[bool] = False
    preload: ClassVar[tuple[str, ...]] = ()  # modules that a pool's processes import before their first task
    ports: ClassVar[Ports] = "none"
    """The free ports of a generation that the plugin listens on: the head's, ``info.head_port``, or each rank's own,
    ``info.peers[rank].port``. Only one plugin of a broadcast may have them."""

    def brings(self) -> Sequence[Plugin]:
        """Return the plugins that this one builds on."""
        return ()

    def packages(self, accelerators: Sequence[str]) -> Sequence[str]:  # noqa: ARG002
        """Return requirements, in pip's format, of packages that are installed on other computers.

        A package is not installed if a computer has it in any version. The user's own requirements override these:
        packages that `Image(pip=...)` names, and a lock as a whole. If the user names one of several packages, the
        others lose their ``==``, so that the versions can fit together.

        Args:
            accelerators: The types of accelerators of the pool, such as "A100".
        """
        return ()

    def ranks_per_node(self, facts: NodeFacts) -> int:  # noqa: ARG002
        """Return the number of ranks of a broadcast on a node."""
        return 1

    def env(self, info: InstanceInfo) -> Mapping[str, str]:  # noqa: ARG002
        """Return environment variables for this task."""
        return {}

    def session(self, info: InstanceInfo) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return the context manager in which the function runs, in the task's process."""
        return nullcontext()

    def wrap(self, function: Callable[..., Any], info: InstanceInfo) -> Callable[..., Any]:  # noqa: ARG002
        """Return the function that runs in place of the user's, inside the session. For a map, it takes one item.

        A generator function must be wrapped by a generator function, and a coroutine function by a coroutine function.
        """
        return function

    def node(self, side: NodeSide) -> AbstractContextManager[Setup | None]:  # noqa: ARG002
        """Return the context manager that each node enters once before its first task, and leaves at its end."""
        return nullcontext()

    @property
    def has_halves(self) -> bool:
        """Return whether the plugin has a part on nodes or in the client, so that it cannot belong to one function."""
        return type(self).node is not Plugin.node or type(self).attach is not Plugin.attach

    def attach(self, context: PluginContext) -> AbstractAsyncContextManager[Any]:  # noqa: ARG002
        """Return the plugin's part in the client: a context manager around the open pool.

        `Pool.handle` returns its value.
        """
        return nullcontext()


@dataclass(frozen=True, slots=True)
class Setup:
    """The result of a plugin's part on a node: environment variables for tasks, and the node's accelerators."""

    env: Mapping[str, str] = field(default_factory=dict)  # set for every task of the node
    accelerators: tuple[tuple[str, float], ...] | None = None  # (type, memory in GB) of each device; None: unchanged


@dataclass(slots=True)
class NodeSide:
    """The argument of a plugin's part on a node: facts about the node, and messages to and from the client."""

    pool: str
    node: int  # number of the node, never reused in a pool
    hostname: str
    address: str  # the address by which other nodes reach this one
    accelerators: tuple[tuple[str, float], ...]
    directory: Path  # a private folder, deleted with the node
    tell: Callable[[Any], None]
    """Send a message to the client's half; from any thread, without waiting. If that half does not keep up, messages
    wait in this node's memory, and those of the node's other plugins behind them."""
    heard: Callable[[Any], None] = field(default=lambda _: None)
    """Called with each message of the client's half, in order, in one thread. Set it before the half is set up."""


class Attaching(Protocol[H_co]):
    """A plugin with a part in the client that offers an object of type ``H_co`` to users."""

    @property
    def name(self) -> str: ...

    def attach(self, context: PluginContext) -> AbstractAsyncContextManager[H_co]: ...


class Joined(NamedTuple):
    """A node has joined, and the plugin's part on it is set up."""

    node: NodeId
    facts: NodeFacts


class Left(NamedTuple):
    """A node has left, or the plugin's part on it has ended."""

    node: NodeId


class Heard(NamedTuple):
    """A message from the plugin's part on a node."""

    node: NodeId
    message: Any


News = Joined | Left | Heard


class PluginContext(Protocol):
    """The argument of a plugin's part in the client: access to the pool, on the pool's event loop."""

    @property
    def pool(self) -> AsyncVerbs:
        """The pool, a `Pool`."""
        ...

    @property
    def core(self) -> Any:
        """The open pool, for Outrider's own plugins."""
        ...

    @property
    def slots(self) -> int:
        """The number of slots of all ready nodes together."""
        ...

    def news(self) -> AsyncIterator[News]:
        """Iterate over joining and leaving nodes, and messages from them. Starts with the present nodes.

        Only for one consumer. At most 256 messages and 1 MiB per node are buffered here; further messages wait on the
        node.
        """
        ...

    def tell(self, node: NodeId, message: Any) -> None:
        """Send a message to the plugin's part on ``node``; if the node is gone, the message is lost."""
        ...

    async def forward(self, node: NodeId, port: int, *, loopback: bool = False) -> str:
        """Return an address, ``host:port``, by which this computer reaches a port on ``node``.

        For a remote node, this is a port on this computer's loopback interface. It is forwarded through the pool's
        connection until the plugins' parts in the client have ended. ``loopback``: the port on the node listens only on
        the node's loopback interface, not on the node's address, so that other hosts cannot reach it.
        """
        ...


def check_plugins(plugins: Sequence[Plugin]) -> None:
    """Refuse plugins with attributes of wrong types, and the same plugin twice.

    Raises:
        SpecError
    """
    for place, plugin in enumerate(plugins):
        check_plugin(plugin)
        if plugin.collective and plugin.name in [each.name for each in plugins[:place]]:
            raise SpecError(f"plugins: {plugin.name} is there twice: leave one out.")


def check_plugin(plugin: Plugin) -> None:
    """Refuse a third-party plugin whose attributes have other types than those of `Plugin`.

    Raises:
        SpecError
    """
    kind = type(plugin).__name__
    if not isinstance(plugin.name, str):
        raise SpecError(f"{kind}.name is a text, not {shown(plugin.name)}.")
    preload: object = plugin.preload
    if not isinstance(preload, tuple | list) or not all(isinstance(each, str) for each in preload):
        raise SpecError(f"{kind}.preload has the names of modules, as in ('numpy',), not {shown(preload)}.")
    if plugin.ports not in get_args(Ports):
        raise SpecError(f"{kind}.ports is one of {', '.join(get_args(Ports))}, not {shown(plugin.ports)}.")


def replaced(before: Sequence[Plugin], after: Sequence[Plugin]) -> tuple[Plugin, ...]:
    """Join two lists of plugins. Of plugins with the same name, keep the later one."""
    names = {plugin.name for plugin in after}
    return (*(plugin for plugin in before if plugin.name not in names), *after)


def merged(pool: Sequence[Plugin], function: Sequence[Plugin]) -> tuple[Plugin, ...]:
    """Return a pool's and a function's plugins, with the plugins that these bring.

    A function's plugin replaces the pool's plugin of the same name.
    """
    plugins = replaced(pool, function)
    by_name = {plugin.name: plugin for plugin in plugins}
    met: list[Plugin] = []
    chosen: list[Plugin] = []

    def add(plugin: Plugin) -> None:
        if plugin not in met:
            met.append(plugin)
            for brought in plugin.brings():
                add(by_name.setdefault(brought.name, brought))
            chosen.append(plugin)

    for plugin in plugins:
        add(plugin)
    return tuple(chosen)


def one_listens(plugins: Sequence[Plugin]) -> Ports:
    """Return the ports that a broadcast with these plugins needs.

    Raises:
        SpecError: two plugins would listen on the same ports.
    """
    listening = [plugin for plugin in plugins if plugin.ports != "none"]
    if len(listening) > 1:
        first, second, *_ = (plugin.name for plugin in listening)
        raise SpecError(
            f"The plugins {first} and {second} would each connect the ranks of one broadcast, on the same port: give "
            f"the pool neither, and each function its own, by @integrations.{first} or @integrations.{second}."
        )
    return listening[0].ports if listening else "none"
