"""The settings and objects that all connections of a pool share.

`SharedLogins` are connections to login hosts: each carries the commands of several machines, as many as the host
allows. `Uploads` sums up the progress of large uploads, and reports it if they take longer than a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ...actors.events import Event, UploadProgress
from ...lazy_dataclass import dataclass
from ...providers.base import Login, Machine
from ..objects.blob_transfers import TransferProgress
from ..objects.content_keys import ContentKeys
from ..objects.peer_transfers import PeerTransfers
from . import requirement_check
from .heartbeat import Beats
from .instance_views import InstanceViews
from .memory_checkpoints import MemoryCheckpoints
from .plugin_hosts import PluginHosts
from .route import Interpose

if TYPE_CHECKING:
    from ..image.install_plan import Prepared
    from .ssh import (
        Connected,  # pools on this computer do not need this import
        PoolKey,
    )
    from .task_output import PrintedLines, TaskLogs


@dataclass(slots=True, eq=False)
class SharedLogin:
    """A shared connection. It closes as soon as it has no users."""

    connected: Connected
    users: int = 0
    full: bool = False  # the host opens no more sessions at present: sshd's MaxSessions
    silent: bool = False  # the host has not answered: the connection may be dead, and gets no new users

    @property
    def usable(self) -> bool:
        return not (self.full or self.silent or self.connected.connection.is_closed())

    def taken(self) -> SharedLogin:
        self.users += 1
        return self

    def leave(self, *, refused: bool = False) -> None:
        """End one use of the connection.

        ``refused``: the host opened no session. Otherwise a session has ended, so there is room for another.
        """
        self.users -= 1
        self.full = refused and bool(self.users)
        if not self.users:  # the end of the last session is still being sent: close after that
            asyncio.get_running_loop().call_soon(self._close)

    def _close(self) -> None:
        if not self.users:
            self.connected.abort()


@dataclass(slots=True)
class _Place:
    """All shared connections to one login host as one user."""

    open: list[SharedLogin] = field(default_factory=list)
    dialling: asyncio.Task[Connected] | None = None
    waiting: int = 0  # number of calls that wait for the connection that `dialling` opens


class SharedLogins:
    """The shared login connections of one pool."""

    def __init__(self) -> None:
        self._places: dict[Login, _Place] = {}

    async def take(self, way: Login, dial: Callable[[], Awaitable[Connected]]) -> SharedLogin:
        """Return a connection that can carry another command, until `SharedLogin.leave`.

        If there is no such connection, open one by ``dial`` for all callers that wait. Cancel-safe if ``dial`` is.

        Raises:
            Exception: any error of ``dial``.
        """
        place = self._places.setdefault(way, _Place())
        place.open = [shared for shared in place.open if not shared.connected.connection.is_closed()]
        for shared in place.open:
            if shared.usable:
                return shared.taken()
        if place.dialling is None:
            place.dialling = asyncio.ensure_future(dial())
        dialling = place.dialling
        place.waiting += 1
        try:
            connected = await asyncio.shield(dialling)
        except asyncio.CancelledError:
            if place.waiting == 1 and place.dialling is dialling:  # no other call waits for this connection
                place.dialling = None
                dialling.add_done_callback(_discard)
                dialling.cancel()
            raise
        except BaseException:
            if place.dialling is dialling:
                place.dialling = None
            raise
        finally:
            place.waiting -= 1
        if place.dialling is dialling:  # of the calls that waited for `dialling`, this call is the first to continue
            place.dialling = None
            place.open.append(SharedLogin(connected))
        for shared in place.open:
            if shared.connected is connected:
                return shared.taken()
        raise ConnectionResetError("the connection to the login host was lost")


def _discard(over: asyncio.Future[Connected]) -> None:
    if not over.cancelled() and over.exception() is None:
        over.result().abort()


LARGE_BYTES = 64 * 2**20
REPORT_AFTER_S = 1.0
REPORT_EACH_S = 0.5


@dataclass(slots=True)
class Upload:
    """A running upload of one blob to one node. ``sent_bytes``: returns the bytes sent by the current try."""

    node: int
    size_bytes: int
    sent_bytes: Callable[[], int]


@dataclass(slots=True)
class Wave:
    """A set of overlapping uploads: each began before all earlier ones had ended. No clock, no I/O."""

    began_at: float
    nodes: set[int] = field(default_factory=set)
    total_bytes: int = 0
    is_reported: bool = False
    _done_bytes: int = 0
    _moving: list[Upload] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return not self._moving

    def begin(self, upload: Upload) -> None:
        self._moving.append(upload)
        self.nodes.add(upload.node)
        self.total_bytes += upload.size_bytes

    def end(self, upload: Upload, *, whole: bool) -> None:
        """End an upload. An incomplete upload does not count: it starts over, or is not needed any more."""
        self._moving.remove(upload)
        if whole:
            self._done_bytes += upload.size_bytes
        else:
            self.total_bytes -= upload.size_bytes

    def progress(self, now: float) -> UploadProgress | None:
        """Return the event to report now; None: this set of uploads has not lasted long enough."""
        if not self.is_reported and (self.ended or now - self.began_at < REPORT_AFTER_S):
            return None
        self.is_reported = True
        sent = self._done_bytes + sum(min(each.size_bytes, each.sent_bytes()) for each in self._moving)
        return UploadProgress(len(self.nodes), sent, self.total_bytes, now - self.began_at, self.ended)


class Uploads:
    """The uploads of a pool, to all nodes. ``observe`` receives an event every half second while large uploads run."""

    def __init__(self, observe: Callable[[Event], object], now: Callable[[], float] = time.monotonic) -> None:
        self._observe, self._now = observe, now
        self._wave: Wave | None = None
        self._timer: asyncio.TimerHandle | None = None

    def watched(self, node: int, size_bytes: int, progress: TransferProgress) -> AbstractContextManager[None]:
        """Return a context manager for one try to send a blob. For a small blob it costs one comparison."""
        return nullcontext() if size_bytes < LARGE_BYTES else self._watched(node, size_bytes, progress)

    @contextmanager
    def _watched(self, node: int, size_bytes: int, progress: TransferProgress) -> Iterator[None]:
        if self._wave is None:
            self._wave = Wave(self._now())
            self._again(REPORT_AFTER_S)
        wave, whole = self._wave, False
        upload = Upload(node, size_bytes, lambda: progress.at_bytes)
        wave.begin(upload)
        try:
            yield
            whole = True
        finally:
            wave.end(upload, whole=whole)
            if wave.ended:
                self._wave = None
                if self._timer is not None:
                    self._timer.cancel()
                self._tell(wave)

    def _again(self, in_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(in_s, self._tick)

    def _tick(self) -> None:
        if self._wave is not None:
            self._tell(self._wave)
            self._again(REPORT_EACH_S)

    def _tell(self, wave: Wave) -> None:
        if (event := wave.progress(self._now())) is not None:
            self._observe(event)


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
