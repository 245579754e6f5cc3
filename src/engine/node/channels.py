"""Channels of an executor server: the first frame tells a client's control channel from one blob in or out."""

from __future__ import annotations

import os
from typing import Protocol

from ..wire import codec
from ..wire.codec import ProtocolError
from ..wire.messages import Get, Have, Hello, Missing, Put
from . import limits
from .store import Incoming, Store

_PIECE_BYTES = 65536


class Channel(Protocol):
    """A byte stream, whatever carries it. Nothing here raises."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Control(Protocol):
    """The receiver of the control channels: the executor server."""

    def greeted(self, door: ChannelServer, hello: Hello, rest: bytes) -> None: ...

    def heard(self, door: ChannelServer, data: bytes) -> None: ...

    def choked(self, door: ChannelServer, full: bool) -> None: ...

    def lost(self, door: ChannelServer) -> None: ...


class ChannelServer:
    """The server's end of one channel; whoever owns the channel calls these methods as things happen to it."""

    def __init__(self, channel: Channel, control: Control, store: Store) -> None:
        self._channel = channel
        self._control = control
        self._store = store
        self._splitter: codec.Splitter | None = codec.Splitter()  # until the first frame is complete
        self._incoming: Incoming | None = None
        self._outgoing: int | None = None  # a descriptor
        self._at = 0
        self._paused = False
        self._is_control = False
        self._closed = False

    def write(self, data: bytes) -> None:
        if not self._closed:
            self._channel.write(data)

    def close(self) -> None:
        if not self._closed:
            self._channel.close()
            self.lost()

    def received(self, data: bytes) -> None:
        if self._closed:
            return
        try:
            if self._is_control:
                self._control.heard(self, data)
            elif self._incoming is not None:
                self._fill(self._incoming, data)
            elif self._splitter is not None:
                self._begin(self._splitter, data)
        except ProtocolError:  # malformed: this channel ends, no more
            self.close()
        except OSError as error:  # what it asks for takes a descriptor: its client tries again
            if self._is_control or not limits.is_shortage(error):
                raise
            self.close()

    def pause_writing(self) -> None:
        self._paused = True
        if self._is_control:
            self._control.choked(self, True)

    def resume_writing(self) -> None:
        self._paused = False
        if self._is_control:
            self._control.choked(self, False)
        self._pump()

    def lost(self) -> None:
        """Handle the end of the channel, whichever side has closed it."""
        if self._closed:
            return
        self._closed = True
        if self._incoming is not None:
            self._incoming.abandon()
            self._incoming = None
        if self._outgoing is not None:
            os.close(self._outgoing)
            self._outgoing = None
        if self._is_control:
            self._control.lost(self)

    def _begin(self, splitter: codec.Splitter, data: bytes) -> None:
        body = splitter.first(data)
        if body is None:
            return
        self._splitter = None
        match codec.decode(body):
            case Hello() as hello:
                self._is_control = True
                self._control.greeted(self, hello, splitter.tail)
            case Put(name, size_bytes):
                self._incoming = Incoming(name, size_bytes)
                self._fill(self._incoming, splitter.tail)
            case Get(name):
                self._send(name)
            case message:
                raise ProtocolError(f"a channel cannot begin with {type(message).__name__}")

    def _fill(self, incoming: Incoming, data: bytes) -> None:
        if len(data) > incoming.missing_bytes:
            raise ProtocolError(f"more than the {incoming.size_bytes} bytes announced for blob {incoming.name!r}")
        try:
            incoming.write(data)
        except OSError:  # no memory: the client sees the channel close
            self.close()
            return
        if not incoming.missing_bytes:
            self._incoming = None
            incoming.done(self._store)
            self.write(codec.encode(Have(incoming.name, incoming.size_bytes)))

    def _send(self, name: str) -> None:
        fd = self._store.fd(name)
        if fd is None:
            self.write(codec.encode(Missing(name)))
            return
        self._outgoing = os.dup(fd)
        self.write(codec.encode(Have(name, os.fstat(fd).st_size)))
        self._pump()

    def _pump(self) -> None:
        while self._outgoing is not None and not self._paused and not self._closed:
            piece = os.pread(self._outgoing, _PIECE_BYTES, self._at)
            if not piece:
                os.close(self._outgoing)
                self._outgoing = None
                return
            self._at += len(piece)
            self._channel.write(piece)
