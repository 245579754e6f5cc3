"""The total progress of large uploads, reported if they take longer than a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import field

from ...actors.events import Event, UploadProgress
from ...lazy_dataclass import dataclass
from ..objects.blob_transfers import TransferProgress

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
