"""One channel to an executor, whatever carries it: the control channel of a node, or one blob on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ..api.printable import plain
from ..node.client_channels import ByteStream
from ..serialization.payload import Part, huge_buffer
from ..wire import messages as wire
from ..wire.codec import ProtocolError, Splitter, decode
from .blob_transfers import TransferProgress

SLICE_BYTES = 256 << 10  # of a blob, between two looks at whether the channel still takes more
ANSWER_S = 10.0  # for a node to say that it has a blob, which takes it no time
STALL_S = 60.0  # of a blob from a node whose heartbeats come over the same connection
TAKEN_S = 300.0  # of a blob to a node: what is on its way, up to 2 MiB, is seen to move only when the node has it all


class Channel(ByteStream):
    """Either kind: bytes in and out."""

    # While it is open: a unix socket's transport, or a channel of an SSH connection, which has the same methods.
    _carrier: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        self._carrier = transport

    @property
    def is_open(self) -> bool:
        return self._carrier is not None

    def write(self, data: bytes) -> None:
        if self._carrier is not None and not self._carrier.is_closing():  # else its end is on the way to us
            self._carrier.write(data)

    def close(self) -> None:
        if self._carrier is not None:
            self._carrier.close()

    def abort(self) -> None:
        """Close it, and let what is not written yet go."""
        if self._carrier is not None:
            self._carrier.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._carrier = None
        self.lost(exc)

    def lost(self, exc: Exception | None) -> None:
        raise NotImplementedError


class Control(Channel):
    """The control channel: the first message answers the hello, everything after it is the session's."""

    def __init__(self) -> None:
        super().__init__()
        self.first: asyncio.Future[wire.Message] = asyncio.get_running_loop().create_future()
        self._splitter = Splitter()
        self.rest = b""
        self._receive: Callable[[bytes], None] | None = None
        self._lose: Callable[[str], None] | None = None
        self.ended = False  # by the executor, and not with the connection

    def attach(self, receive: Callable[[bytes], None], lose: Callable[[str], None]) -> None:
        self._receive, self._lose = receive, lose

    def detach(self) -> None:
        self._receive = self._lose = None

    def data_received(self, data: bytes) -> None:
        if self._receive is not None:
            self._receive(data)
        elif self.first.done():
            self.rest += data  # the connection attaches itself a tick after the first message
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
        if self._lose is not None:
            self._lose(cause)
        elif not self.first.done():
            self.first.set_exception(ConnectionResetError(cause))
            self.first.exception()  # seen: asyncio would complain where who opened the channel was cancelled


class Transfer(Channel):
    """One blob: the node's answer is one frame, and what it sends behind that is the blob."""

    stall_s: float  # without a byte, and its channel is given up
    answer_s: float  # without an answer, likewise

    def __init__(self, progress: TransferProgress) -> None:
        super().__init__()
        self._progress = progress
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answer: Splitter | None = Splitter()  # until it is complete

    def begin(self) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        if self.done.done():
            return
        try:
            if self._answer is not None:
                head = self._answer.first(data)
                if head is None:
                    return
                answer, data, self._answer = decode(head), self._answer.tail, None
                if not isinstance(answer, wire.Have):
                    raise LookupError(f"the node does not have what it promised: {answer}")
                self.answered(answer)
            self.came(data)
        except Exception as error:  # noqa: BLE001  absurd, or too large: of this blob alone, where its SSH connection would end
            self.finish(error)

    def answered(self, answer: wire.Have) -> None:
        pass

    def came(self, data: bytes) -> None:
        pass

    def lost(self, exc: Exception | None) -> None:
        self.finish(ConnectionResetError(plain(str(exc or "the channel was closed"))))

    async def wait(self) -> None:
        """Return when the transfer has succeeded, and raise what it failed with, or that nothing of it comes."""
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
                self.done.exception()  # seen: asyncio would complain where who waited was cancelled


class Sending(Transfer):
    """A blob out, a slice at a time while the channel takes it."""

    stall_s = answer_s = TAKEN_S  # the answer comes at the end

    def __init__(self, parts: Sequence[Part], progress: TransferProgress) -> None:
        super().__init__(progress)
        self._parts = [memoryview(part).cast("B") for part in parts]
        self._paused = False

    def begin(self) -> None:
        self._pump()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    def _pump(self) -> None:
        while self._parts and not self._paused:
            part, rest = self._parts[0][:SLICE_BYTES], self._parts[0][SLICE_BYTES:]
            self._parts[:1] = [rest] if rest else []
            self.write(bytes(part))
            self._progress.moved(len(part))

    def answered(self, answer: wire.Have) -> None:  # noqa: ARG002
        self.finish()  # it is all in place


class Receiving(Transfer):
    """A blob in, straight into its place."""

    stall_s, answer_s = STALL_S, ANSWER_S

    def __init__(self, progress: TransferProgress) -> None:
        super().__init__(progress)
        self._at = 0

    def answered(self, answer: wire.Have) -> None:
        if not answer.size_bytes:
            raise ProtocolError("a blob of 0 bytes")
        self._progress.expect(answer.size_bytes)
        self.buffer = huge_buffer(answer.size_bytes)
        self._view = memoryview(self.buffer)

    def came(self, data: bytes) -> None:
        end = self._at + len(data)
        if end > len(self._view):
            raise ProtocolError(f"more than the {len(self._view)} bytes announced")
        self._view[self._at : end] = data
        self._at = end
        self._progress.moved(len(data))
        if end == len(self._view):
            self.finish()
