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
    """A request to a test cloud. ``path``: without the query. The names of ``headers`` are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The JSON in the body; None: there is no body.

        Raises:
            ValueError: The body is not JSON.
        """
        return json.loads(self.body) if self.body else None


@dataclass(frozen=True, slots=True)
class Reply:
    """A test cloud's response. ``body``: sent as JSON; None: no body."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Refused(Exception):
    """Raised by a test cloud that refuses a call."""

    def __init__(self, code: str, message: str, status: int = 400, **headers: str) -> None:
        super().__init__(code)
        self.code, self.message, self.status, self.headers = code, message, status, headers


class CloudFront(ABC):
    """A cloud that runs on this computer during a `with` block. Several may be open at the same time.

    Args:
        times: How long machines take to boot and stop, and how outdated the lists of machines are.
        hypervisor: Runs the machines. Default: machines are only recorded (`Paper`).
        faults: Faults that are active from the beginning.
        seed: The same seed gives the same ids.
        address: The address at which the test cloud listens.

    Raises:
        ExceptionGroup: At the end of the block: exceptions of the hypervisor, errors of the test cloud's own code, and
            requests and responses that do not fit the published schema.
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
        # number of calls by operation, also refused ones and ones without a response
        self.calls: Counter[str] = Counter()
        self.failures: list[Exception] = []
        self.lock = threading.RLock()  # held during each call, so that calls are handled one after another
        self.faults.add(*faults)

    # --- methods of one cloud's front ---------------------------------------------------------------------------------

    @abstractmethod
    def action(self, request: Request) -> str:
        """Return the name of the requested operation, for faults and `calls`; empty: there is no such operation."""

    @abstractmethod
    def let_in(self, request: Request, action: str) -> None:
        """Check the credentials, the rate limits, and that the request fits the schema.

        Raises:
            Refused: The request is refused.
            Invalid: The request does not fit the schema.
        """

    @abstractmethod
    def answer(self, request: Request, action: str) -> Reply:
        """Carry out a request.

        Raises:
            Refused: The request is refused.
        """

    @abstractmethod
    def check(self, request: Request, action: str, reply: Reply) -> None:
        """Check a response against the schema.

        Raises:
            Invalid: The response does not fit the schema.
        """

    @abstractmethod
    def refusal(self, refused: Refused) -> Reply:
        """Return a refusal as a response in the form of this cloud."""

    @abstractmethod
    def throttled(self) -> Refused:
        """Return the refusal of a request that exceeds the rate limits."""

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
        """Advance the time by ``seconds`` at once. When this returns, every action that became due has run."""
        with self.clock.held():
            # finish the machines' boots and power-offs that are in progress, before the time advances
            while self.store.settle():
                pass
            until = self.clock.now() + seconds
            while self.store.settle() or self.clock.step(until):
                pass

    def catch_up(self) -> None:
        """Make lists show the present state from now on."""
        with self.store.lock:
            self.store.times = replace(self.times, stale_s=0.0, wavering=False)

    def machines(self, *states: State) -> list[FrontMachine]:
        """All machines, including terminated ones. ``states``: only machines in these states."""
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
            # the clock is closed first, because the server waits for its calls, and the calls wait for the clock
            closing.callback(self.clock.close)
            self._closing = closing.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()
        if self.failures and error is None:
            raise ExceptionGroup("the test cloud or its hypervisor failed, or was called wrongly", self.failures)

    def respond(self, request: Request) -> Reply | None:
        """Answer a request, with the active faults that apply to it; None: cut the connection."""
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
    # headers and body are two writes: otherwise the second write would wait for an acknowledgement of the first
    disable_nagle_algorithm = True

    def _respond(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:  # the client has died in the middle of its request
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
        with suppress(OSError):  # the connection is already closed
            self.connection.shutdown(socket.SHUT_RDWR)


class _Server(ClosesConnections, ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, front: CloudFront) -> None:
        super().__init__((front.address, 0), _Handler)
        self.front = front

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # the client has died in the middle of its request
