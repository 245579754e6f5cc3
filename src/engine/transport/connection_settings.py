"""The settings that all connections of a pool have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ...actors.events import Event
from ...lazy_dataclass import dataclass
from ...providers.base import Machine
from . import requirement_check
from .content_keys import ContentKeys
from .heartbeat import Beats
from .instance_views import InstanceViews
from .memory_checkpoints import MemoryCheckpoints
from .peer_transfers import PeerTransfers
from .plugin_hosts import PluginHosts
from .shared_logins import SharedLogins
from .unix_route import Interpose
from .uploads import Uploads

if TYPE_CHECKING:
    from ..image.install_plan import Prepared
    from ..observe.prints import PrintedLines
    from ..observe.task_logs import TaskLogs
    from .ssh import PoolKey

BOOTSTRAPS = 50  # at once; the machines that wait are connected to, and their leases renewed


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    pool: str
    views: InstanceViews
    key: PoolKey | None  # None: no machine is reached by SSH
    setup: dict[str, Any]  # the `Hello` message's field
    wanted: Callable[[Machine], requirement_check.Wanted]
    lease_s: float
    image: Callable[[], Awaitable[Prepared]]  # made once, when the first machine needs it
    observe: Callable[[Event], object]
    prints: PrintedLines
    logs: TaskLogs
    plugins: PluginHosts
    checkpoints: MemoryCheckpoints = field(default_factory=MemoryCheckpoints)
    uploads: Uploads = field(default_factory=lambda: Uploads(lambda _: None))
    bootstraps: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(BOOTSTRAPS))
    logins: SharedLogins = field(default_factory=SharedLogins)  # to the hosts that run commands for machines
    reported_differences: set[tuple[tuple[str, str, str], ...]] = field(default_factory=set)  # in packages' versions
    beats: Beats = field(default_factory=Beats)
    interpose: Callable[[], Interpose | None] = lambda: None
    object_bytes: tuple[int | None, int | None] = (None, None)  # that a node remembers in memory and on its disk
    keys: ContentKeys = field(default_factory=ContentKeys)
    peers: PeerTransfers | None = None  # None: no object goes from node to node
    turn: str = ""  # which of the pool's clients this is, where one took it over from another
    pinned: Callable[[Machine], tuple[str, ...]] = lambda _: ()  # keys that its host may show, where it was replaced
    rotated: Callable[[Machine, tuple[str, ...]], Awaitable[None]] | None = None  # called before they are in use
