"""The settings that all connections of a pool share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ...actors.events import Event
from ...lazy_dataclass import dataclass
from ...providers.base import Machine
from ..objects.content_keys import ContentKeys
from ..objects.peer_transfers import PeerTransfers
from . import requirement_check
from .heartbeat import Beats
from .instance_views import InstanceViews
from .memory_checkpoints import MemoryCheckpoints
from .plugin_hosts import PluginHosts
from .shared_logins import SharedLogins
from .unix_route import Interpose
from .uploads import Uploads

if TYPE_CHECKING:
    from ..image.install_plan import Prepared
    from .ssh import PoolKey
    from .task_output import PrintedLines, TaskLogs

# largest number of bootstraps at the same time; a machine that waits is connected, and its lease is renewed
BOOTSTRAPS = 50


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    pool: str
    views: InstanceViews
    key: PoolKey | None  # the pool's SSH key; None: no machine is reached by SSH
    setup: dict[str, Any]  # the field `setup` of the `Hello` message
    wanted: Callable[[Machine], requirement_check.Wanted]
    lease_s: float
    image: Callable[[], Awaitable[Prepared]]  # built once, when the first machine needs the image
    observe: Callable[[Event], object]
    prints: PrintedLines
    logs: TaskLogs
    plugins: PluginHosts
    checkpoints: MemoryCheckpoints = field(default_factory=MemoryCheckpoints)
    uploads: Uploads = field(default_factory=lambda: Uploads(lambda _: None))
    bootstraps: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(BOOTSTRAPS))
    # shared SSH connections to login hosts, on which commands such as `srun` lead to machines
    logins: SharedLogins = field(default_factory=SharedLogins)
    # already reported differences between the package versions here and those on nodes
    reported_differences: set[tuple[tuple[str, str, str], ...]] = field(default_factory=set)
    beats: Beats = field(default_factory=Beats)
    interpose: Callable[[], Interpose | None] = lambda: None
    # limits for objects that a node keeps, in bytes: in memory, on disk; None: the default
    object_bytes: tuple[int | None, int | None] = (None, None)
    keys: ContentKeys = field(default_factory=ContentKeys)
    peers: PeerTransfers | None = None  # None: nodes send no objects to each other
    turn: str = ""  # identifies this client among the clients that have owned the pool, one after another
    # pinned host keys of a machine whose first key was rotated
    pinned: Callable[[Machine], tuple[str, ...]] = lambda _: ()
    # called with new host keys before the host uses them
    rotated: Callable[[Machine, tuple[str, ...]], Awaitable[None]] | None = None
