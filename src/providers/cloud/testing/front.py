"""`CloudFront`: the base of test clouds that serve JSON over HTTP. Subclasses add one cloud's interface."""

from __future__ import annotations

import json
import socket
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import parse_qsl, urlsplit

from ....lazy_dataclass import dataclass
from .billing import Ledger
from .clock import Clock
from .connections import ClosesConnections
from .faults import CallRefused, Fault, Faults, HalfAnswer, LostAnswer, LostRequest, Slow, Throttle, Unauthorized
from .hypervisor import Hypervisor, Paper
from .machines import FrontMachine, Machines, State, Times
from .schema import Invalid


@dataclass(frozen=True, slots=True)
class Request:
    """A request. ``path`` is without its query; names of ``headers`` are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body's JSON; None: there is no body.

        Raises:
            ValueError: The body is not JSON.
        """
        return json.loads(self.body) if self.body else None


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. ``body`` is sent as JSON; None: there is none."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Refused(Exception):
    """The cloud refuses a call."""

    def __init__(self, code: str, message: str, status: int = 400, **headers: str) -> None:
        super().__init__(code)
        self.code, self.message, self.status, self.headers = code, message, status, headers


class CloudFront(ABC):
    """A cloud on this computer, for the length of a `with` block. Any number may be open.

    Args:
        times: How long machines take to boot and stop, and how old lists are.
        hypervisor: Runs the machines. Default: they exist only on paper.
        faults: Faults in force from the beginning.
        seed: The same seed gives the same ids.
        address: The address that it listens at.

    Raises:
        ExceptionGroup: At the end: exceptions of the hypervisor; calls that failed by the cloud's own fault; and
            requests and answers that do not fit its published schema.
    """

    name: ClassVar[str]
    powered_off: ClassVar[State] = "terminated"  # state of a machine that has switched itself off

    def __init__(
        self,
        times: Times = Times(),  # noqa: B008 - the default is immutable
        *,
        hypervisor: Hypervisor | None = None,
        faults: Sequence[Fault] = (),
        seed: int = 0,
        address: str = "127.0.0.1",
    ) -> None:
        self.times, self.hypervisor, self.seed = times, Paper() if hypervisor is None else hypervisor, seed
        self.address = address
        self.faults = Faults()
        self.calls: Counter[str] = Counter()  # number of calls by action, including refused and lost ones
        self.failures: list[Exception] = []
        self.lock = threading.RLock()  # held during each call, so that calls happen one after another
        self.faults.add(*faults)

    # --- methods of one cloud's front ---------------------------------------------------------------------------------

    @abstractmethod
    def action(self, request: Request) -> str:
        """Return the name of a requested operation, as faults and `calls` use it; "": there is no such operation."""

    @abstractmethod
    def let_in(self, request: Request, action: str) -> None:
        """Check the credentials, the limits of requests, and that the request fits the schema.

        Raises:
            Refused: the request is refused.
            Invalid: The request does not fit the schema.
        """

    @abstractmethod
    def answer(self, request: Request, action: str) -> Reply:
        """Carry out a request.

        Raises:
            Refused: the request is refused.
        """

    @abstractmethod
    def check(self, request: Request, action: str, reply: Reply) -> None:
        """Check a response against the schema.

        Raises:
            Invalid: The response does not fit the schema.
        """

    @abstractmethod
    def refusal(self, refused: Refused) -> Reply:
        """Render a refusal as this cloud does."""

    @abstractmethod
    def throttled(self) -> Refused:
        """Return the refusal of a request that comes too often."""

    @abstractmethod
    def unauthorized(self, action: str) -> Refused:
        """Return the refusal of a request that the credentials do not allow."""

    # --- methods for tests --------------------------------------------------------------------------------------------

    @property
    def endpoint_url(self) -> str:
        return f"http://{self.address}:{self._server.server_port}"

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    def time(self) -> float:
        """The cloud's time in seconds since 1970: `time.time`, plus the seconds of `advance`."""
        return self.clock.unix()

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass at once; everything that was due has happened when this returns."""
        with self.clock.held():
            while self.store.settle():  # changes of power that are in progress finish before the time advances
                pass
            until = self.clock.now() + seconds
            while self.store.settle() or self.clock.step(until):
                pass

    def catch_up(self) -> None:
        """Make lists up to date from now on."""
        with self.store.lock:
            self.store.times = replace(self.times, stale_s=0.0, wavering=False)

    def machines(self, *states: State) -> list[FrontMachine]:
        """All machines, including terminated ones; or only those in these states."""
        return [each for each in self.store.all() if not states or each.state in states]

    def machine(self, name: str) -> FrontMachine:
        """The machine of this id.

        Raises:
            KeyError: there is no such machine.
        """
        return self.store.get(name)

    # --- internals ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with ExitStack() as closing:
            self.clock = Clock(self.failures.append)
            self._ledger = Ledger(self.clock.unix)
            self.store = Machines(
                self.clock,
                self.faults,
                self._ledger,
                self.hypervisor,
                self.times,
                self.failures.append,
                seed=self.seed,
                powered_off=self.powered_off,
            )
            closing.callback(self.store.close)
            self._server = _Server(self)
            closing.callback(self._server.server_close)
            serving = threading.Thread(
                target=self._server.serve_forever, args=(0.02,), name=f"{self.name}-front", daemon=True
            )
            serving.start()
            closing.callback(serving.join)
            closing.callback(self._server.shutdown)
            closing.callback(self.clock.close)  # closed first: the server waits for its calls, which wait for the clock
            self._closing = closing.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()
        if self.failures and error is None:
            raise ExceptionGroup("the test cloud or its hypervisor failed, or was called wrongly", self.failures)

    def respond(self, request: Request) -> Reply | None:
        """Answer a request, with the faults that apply to it; None: cut the connection."""
        action = self.action(request)
        with self.lock:
            self.calls[action] += 1
        if self.faults.first_of(LostRequest, action) is not None:
            return None
        reply = self._reply(request, action)
        slow = self.faults.first_of(Slow, action)
        if slow is not None:
            self.clock.sleep(slow.seconds)
        return None if self.faults.first_of(LostAnswer, action) is not None else reply

    def _reply(self, request: Request, action: str) -> Reply:
        try:
            with self.lock:
                self._refuse(action)
                self.let_in(request, action)
                reply = self.answer(request, action)
        except Refused as refused:
            reply = self.refusal(refused)
        except Invalid as invalid:
            self.failures.append(invalid)
            return self.refusal(Refused("invalid", str(invalid)))
        except Exception as error:  # noqa: BLE001 - a defect of the test cloud: raised when it ends
            self.failures.append(error)
            return self.refusal(Refused("internal", repr(error), 500))
        try:
            self.check(request, action, reply)
        except Invalid as invalid:
            self.failures.append(invalid)
        return reply

    def _refuse(self, action: str) -> None:
        if self.faults.first_of(Throttle, action) is not None:
            raise self.throttled()
        refused = self.faults.first_of(CallRefused, action)
        if refused is not None:
            raise Refused(refused.code, refused.message, refused.status)
        if self.faults.first_of(Unauthorized, action) is not None:
            raise self.unauthorized(action)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body are two writes; otherwise the second would wait for an acknowledgement.
    disable_nagle_algorithm = True

    def _respond(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:  # its sender has died in the middle of the request
            self._cut()
            return
        request = Request(
            self.command,
            parts.path,
            dict(parse_qsl(parts.query, keep_blank_values=True)),
            {name.lower(): value for name, value in self.headers.items()},
            body,
        )
        assert isinstance(self.server, _Server)
        front = self.server.front
        reply = front.respond(request)
        if reply is None:
            self._cut()
            return
        content = b"" if reply.body is None else json.dumps(reply.body).encode()
        half = front.faults.first_of(HalfAnswer, front.action(request))
        sent = content if half is None else content[: len(content) // 2]
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(sent if half is None or half.valid_http else content)))
        self.end_headers()
        self.wfile.write(sent)
        if half is not None and not half.valid_http:
            self._cut()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _respond  # noqa: N815 - the server looks for these names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        pass

    def _cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):  # it is closed already
            self.connection.shutdown(socket.SHUT_RDWR)


class _Server(ClosesConnections, ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, front: CloudFront) -> None:
        super().__init__((front.address, 0), _Handler)
        self.front = front

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # its client has died in the middle of a request
