"""One channel to an executor over any kind of connection: a node's control channel, or a channel for one blob.

Memory of an incoming blob: a thread makes the kernel allocate it a little ahead of the written bytes. A kernel clears
memory at the first access, which takes 0.1 s for 1 GB in huge pages. In a virtual machine that returns unused memory to
its host, the hypervisor must find huge pages first: up to 3 s for 1 GB. There, small pages, of which the kernel has
kept some, take 0.5 s.

AHEAD-3: use huge pages until some are slow, then small pages, unless small pages are even slower.
"""

from __future__ import annotations

import asyncio
import mmap
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from ...providers.shared.threads import hand
from ..api.printable import plain
from ..node.client_channels import ByteStream
from ..objects.blob_transfers import TransferProgress
from ..serialization.payload import Filled, Part, huge_buffer
from ..wire import messages as wire
from ..wire.codec import ProtocolError, Splitter, decode
from .flow_control import SILENT_S, SendAhead

READY_BYTES = 32 << 20  # bytes to allocate ahead of the written bytes
ALLOCATED_BYTES = (
    4 << 20
)  # bytes to allocate at a time: meanwhile, calls such as mmap wait in all threads of this process
# Pages count as slow if their allocation takes more seconds per byte than this: ten times as long as is usual for huge
# pages, and twice as long as is usual for small pages.
SLOW = 1e-9
_SMALL = getattr(mmap, "MADV_NOHUGEPAGE", None)


class PageChoice:
    """The choice of the size of the next pages: huge or small. No I/O, no clock."""

    def __init__(self) -> None:
        self.huge = True
        self._slow_s = 0.0  # seconds per byte that the slow huge pages took; 0: no huge pages were slow
        self._chosen = False

    def took(self, size_bytes: int, seconds: float) -> None:
        if self._chosen:
            return
        each_s = seconds / size_bytes
        if not self.huge:
            self.huge, self._chosen = each_s > self._slow_s, True
        elif each_s > SLOW:
            self.huge, self._slow_s = False, each_s


class MemoryAhead:
    """The allocation of a `huge_buffer` that is written from beginning to end.

    After the last byte, this object holds no reference to the memory, so that the buffer can be closed.
    """

    def __init__(self, size_bytes: int) -> None:
        self.buffer = huge_buffer(size_bytes)
        self._size = size_bytes
        self._written = 0
        # a small buffer needs no thread: the kernel allocates it faster than a thread starts
        self._ready = 0 if size_bytes > ALLOCATED_BYTES else size_bytes
        self._choice = PageChoice()
        self._busy = False

    def written(self, at_bytes: int) -> None:
        """Handle that the first ``at_bytes`` of the buffer are written."""
        self._written = at_bytes
        if self._ready < self._wanted() and not self._busy:
            self._busy = True
            hand(self._make_ready)

    def _wanted(self) -> int:
        return min(self._written + READY_BYTES, self._size)

    def _make_ready(self) -> None:
        from ..wire import large_copy  # this imports ctypes, which few programs need

        with suppress(ValueError):  # the buffer may have been filled, read and closed in the meantime
            while (at := self._next()) < self._wanted():
                with memoryview(self.buffer)[at : at + ALLOCATED_BYTES] as step:
                    if not self._choice.huge and _SMALL is not None:
                        self.buffer.madvise(_SMALL, at, len(step))
                    began = time.thread_time()
                    large_copy.make_ready(step)
                    self._choice.took(len(step), time.thread_time() - began)
                    self._ready = at + len(step)
        self._busy = False

    def _next(self) -> int:
        """Return the offset at which to allocate next: skip memory that the writer has filled in the meantime."""
        return max(self._ready, self._written // ALLOCATED_BYTES * ALLOCATED_BYTES)


# A blob is written in slices of this size; before each slice, the code checks whether the channel still accepts data.
# sshd accepts no larger packets: asyncssh would split a longer slice, and copy the rest of it each time.
SLICE_BYTES = 32 << 10
FILLING_S = 0.001  # seconds between checks whether a blob that is still being copied has more bytes to send
STEP_BYTES = 512 << 10  # bytes to write in one step of the event loop: their encryption takes 2 ms
ANSWER_S = 10.0  # seconds for a node to answer a request for a blob; a healthy node answers at once
# seconds without a byte of a blob, while heartbeats arrive over the same connection, until the transfer fails
STALL_S = 60.0
# seconds for a node to confirm a blob: until then, the client cannot see whether the last 2 MiB make progress
TAKEN_S = 300.0


class Channel(ByteStream):
    """A channel of any kind, for bytes in both directions."""

    # The transport while the channel is open: that of a unix socket, or an SSH channel, which has the same methods.
    _carrier: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        self._carrier = transport

    @property
    def is_open(self) -> bool:
        return self._carrier is not None

    @property
    def takes(self) -> bool:
        """Return whether the channel still sends what is written to it. If not, it calls `connection_lost` soon."""
        return self._carrier is not None and not self._carrier.is_closing()

    def write(self, data: bytes | memoryview) -> None:
        if self._carrier is not None and not self._carrier.is_closing():
            self._carrier.write(data)

    def close(self) -> None:
        if self._carrier is not None:
            self._carrier.close()

    def abort(self) -> None:
        """Close the channel, and drop the bytes that are not sent yet."""
        if self._carrier is not None:
            self._carrier.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._carrier = None
        self.lost(exc)

    def lost(self, exc: Exception | None) -> None:
        raise NotImplementedError


class Listener(Protocol):
    """The interface of the owner of a control channel."""

    def received(self, data: bytes, /) -> None: ...

    def cut(self, cause: str, /) -> None:
        """Handle the end of the channel."""


class Control(Channel):
    """The control channel. Its first message answers the client's greeting; later messages belong to the session."""

    def __init__(self) -> None:
        super().__init__()
        # `first` and `_splitter` are used until the session begins. The first message contains all facts of the node.
        self.first: asyncio.Future[wire.Message] | None = asyncio.get_running_loop().create_future()
        self._splitter: Splitter | None = Splitter()
        self.rest = b""
        self._listener: Listener | None = None
        self.ended = False  # True: the executor closed the channel; False: the connection was lost

    def attach(self, listener: Listener) -> None:
        self._listener = listener
        self.first = self._splitter = None

    def detach(self) -> None:
        self._listener = None

    def data_received(self, data: bytes) -> None:
        if self._listener is not None:
            self._listener.received(data)
        elif self.first is None or self._splitter is None or self.first.done():
            self.rest += data  # keep the bytes that arrive after the first message, before `attach` is called
        else:
            try:
                head = self._splitter.first(data)
                if head is not None:
                    self.rest = self._splitter.tail
                    self.first.set_result(decode(head))
            except ProtocolError as error:
                self.first.set_exception(error)

    def lost(self, exc: Exception | None) -> None:
        self.ended = exc is None
        cause = plain(str(exc)) or type(exc).__name__ if exc else "the connection was closed"
        if self._listener is not None:
            self._listener.cut(cause)
        elif self.first is not None and not self.first.done():
            self.first.set_exception(ConnectionResetError(cause))
            self.first.exception()  # retrieve the error: asyncio would log it if the opening call was cancelled


class Farewell:
    """The last listener of a channel: waits for the channel's end and ignores all data."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()

    def received(self, data: bytes, /) -> None:
        pass

    def cut(self, cause: str, /) -> None:  # noqa: ARG002
        self.heard.set()


class Transfer(Channel):
    """A channel for one blob.

    The node's answer is one frame; when the node sends the blob, its bytes follow the frame.
    """

    stall_s: float  # seconds without a byte after which the transfer fails
    answer_s: float  # seconds without an answer after which the transfer fails

    def __init__(self, progress: TransferProgress) -> None:
        super().__init__()
        self._progress = progress
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answer: Splitter | None = Splitter()  # parses the answer; None: the answer is complete

    @property
    def has_answer(self) -> bool:
        """Return whether the answer is complete, so that further bytes belong to the blob."""
        return self._answer is None

    def begin(self) -> None:
        pass

    def release(self) -> None:
        """Drop the references to the blob's memory, at the end of the transfer.

        A channel of asyncssh and its session refer to each other until Python's garbage collector runs, which is
        seldom.
        """
        raise NotImplementedError

    def data_received(self, data: bytes | memoryview) -> None:
        if self.done.done():
            return
        try:
            if self._answer is not None:
                head = self._answer.first(bytes(data))
                if head is None:
                    return
                answer, data, self._answer = decode(head), self._answer.tail, None
                if not isinstance(answer, wire.Have):
                    raise LookupError(f"the node does not have what it promised: {answer}")
                self.answered(answer)
            self.came(data)
        except Exception as error:  # noqa: BLE001  an invalid answer fails only this blob, not its connection
            self.finish(error)

    def answered(self, answer: wire.Have) -> None:
        pass

    def came(self, data: bytes | memoryview) -> None:
        pass

    def lost(self, exc: Exception | None) -> None:
        self.finish(ConnectionResetError(plain(str(exc or "the channel was closed"))))

    async def wait(self) -> None:
        """Return when the transfer has succeeded. Raise its error, or a ConnectionResetError if it stalls."""
        while not self.done.done():
            before = self._answer, self._progress.at_bytes
            limit_s = self.stall_s if self._answer is None else self.answer_s
            await asyncio.wait([self.done], timeout=limit_s)
            if not self.done.done() and before == (self._answer, self._progress.at_bytes):
                raise ConnectionResetError(f"nothing of it came for {limit_s:g} s")
        self.done.result()

    def finish(self, error: Exception | None = None) -> None:
        if not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)
                self.done.exception()  # retrieve the error: asyncio would log it if the waiting call was cancelled


class Sending(Transfer):
    """The transfer of a blob to the node, one slice at a time while the channel accepts data."""

    stall_s = answer_s = TAKEN_S  # the node answers only after the last byte

    def __init__(
        self, parts: Sequence[Part], progress: TransferProgress, at: int = 0, filled: Filled | None = None
    ) -> None:
        """Prepare to send the blob from byte ``at`` on.

        ``filled``: counts how many bytes of ``parts`` are filled so far; None: all are filled.
        """
        super().__init__(progress)
        self._at, self._filled = at, filled
        self._parts = [memoryview(part).cast("B") for part in parts]
        while at and at >= len(self._parts[0]):
            at -= len(self._parts.pop(0))
        if at:
            self._parts[0] = self._parts[0][at:]
        self._begun = self._paused = self._scheduled = False
        self._ahead: SendAhead | None = None
        self._silence: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Begin to send the blob. The caller has already written the message that announces the blob."""
        self._begun = True
        self._pump()

    def limit(self, ahead: SendAhead) -> None:
        """Send no more bytes than ``ahead``, the flow control of this transfer, allows from now on.

        Each time that the other end has passed on bytes, the caller must call `taken` with their number.
        """
        self._ahead = ahead

    def taken(self, count: int) -> None:
        if self._ahead is not None:
            self._ahead.taken(count, time.monotonic())
            self._end_silence()
            if not self._paused:
                self._pump_in(0)

    def _silent(self) -> None:
        self._silence = None
        if self._ahead is not None and self.takes:
            self._ahead.silent()
            self._pump()

    def _end_silence(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def lost(self, exc: Exception | None) -> None:
        self._end_silence()
        super().lost(exc)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    def _pump(self) -> None:
        """Write until the channel accepts no more data, but at most `STEP_BYTES`.

        Without this limit, a channel that shares its connection with no other channel may accept megabytes at once.
        """
        if not self._begun:  # the channel accepts data, but the message that announces the blob must be written first
            return
        left = STEP_BYTES
        while self._parts and not self._paused and left > 0:
            part = self._parts[0][:SLICE_BYTES]
            if self._filled is not None and self._filled.at_bytes < self._at + len(part):
                self._pump_in(FILLING_S)
                return
            if not self.takes:
                return
            if self._ahead is not None:
                if not self._ahead.room:
                    if self._silence is None:
                        self._silence = asyncio.get_running_loop().call_later(SILENT_S, self._silent)
                    return
                self._ahead.sent(len(part))
            rest = self._parts[0][SLICE_BYTES:]
            self._parts[:1] = [rest] if rest else []
            self.write(part)  # copies the slice
            self._progress.moved(len(part))
            self._at += len(part)
            left -= len(part)
        if self._parts and not self._paused:
            self._pump_in(0)

    def _pump_in(self, seconds: float) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_later(seconds, self._pump_on)

    def _pump_on(self) -> None:
        self._scheduled = False
        self._pump()

    def answered(self, answer: wire.Have) -> None:  # noqa: ARG002
        self.finish()  # the node has the whole blob

    def release(self) -> None:
        self._parts, self._filled = [], None


class Receiving(Transfer):
    """The transfer of a blob from the node. The received bytes are written straight into the blob's final memory."""

    stall_s, answer_s = STALL_S, ANSWER_S

    def __init__(self, progress: TransferProgress) -> None:
        super().__init__(progress)
        self._at = 0
        self._view = memoryview(b"")

    def answered(self, answer: wire.Have) -> None:
        if not answer.size_bytes:
            raise ProtocolError("a blob of 0 bytes")
        self._progress.expect(answer.size_bytes)
        self._memory = MemoryAhead(answer.size_bytes)
        self.buffer = self._memory.buffer
        self._view = memoryview(self.buffer)

    def came(self, data: bytes | memoryview) -> None:
        end = self._at + len(data)
        if end > len(self._view):
            raise ProtocolError(f"more than the {len(self._view)} bytes announced")
        self._memory.written(end)
        self._view[self._at : end] = data
        self._at = end
        self._progress.moved(len(data))
        if end == len(self._view):
            self.finish()

    def finish(self, error: Exception | None = None) -> None:
        self._view.release()  # the buffer cannot be closed while a view of it exists
        super().finish(error)

    def release(self) -> None:
        # no effect if the transfer has ended already; bytes that arrive later are ignored
        self.finish(ConnectionResetError("the transfer was given up"))
        self.__dict__.pop("buffer", None)
        self.__dict__.pop("_memory", None)
