"""An HTTP proxy before a cloud: it cuts, halves, delays, loses, replaces and repeats answers, and knows no cloud.

What it is told about a call is what stands in its HTTP request. The test cloud's own faults (`outrider.testing`) are
spoken in the cloud's words; these are what a network, a middlebox or a broken front end does to any HTTP answer.
"""

from __future__ import annotations

import http.client
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, assert_never
from urllib.parse import parse_qsl, urlsplit

READS = ("Describe", "Get", "Head", "List", "Decode")
MACHINE = re.compile(rb"\bi-[0-9a-f]{8,17}\b")
UPSTREAM_S = 120.0
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing a socket resets its connection


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request. ``number`` counts those of this client and action from 1, ``serial`` those of this client.

    ``luck``: from [0, 1), by the proxy's seed, the client, the action and its number: the same in each life of a seed.
    """

    action: str
    parameters: Mapping[str, str]
    client: str  # the access key that signed it
    number: int
    serial: int
    luck: float
    json: bool = False  # asked in JSON, and answered so; else in a form, and answered in XML
    at: float = field(default_factory=time.time)

    @property
    def writes(self) -> bool:
        return not self.action.startswith(READS)


@dataclass(frozen=True, slots=True)
class CutBefore:
    """Nobody is asked, and the connection ends: it is reset, or closed."""

    reset: bool = False


@dataclass(frozen=True, slots=True)
class CutAfter:
    """The call is carried out, and the connection ends before a byte of the answer."""

    reset: bool = False


@dataclass(frozen=True, slots=True)
class Half:
    """Half of the body, after the Content-Length of the whole; then the connection ends."""


@dataclass(frozen=True, slots=True)
class Shortened:
    """``part`` of the body, with the Content-Length that is right for it: nothing in HTTP says that more was meant."""

    part: float = 0.5


@dataclass(frozen=True, slots=True)
class Instead:
    """This answer. ``asked``: the call is carried out all the same."""

    status: int
    body: bytes = b""
    kind: str = "text/html"
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Late:
    """The call is carried out at once, and answered so many seconds later."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Earlier:
    """What the same question was answered with before, if that is at most so old; else the true answer."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Twice:
    """The request is sent twice, and what the second one is answered with is the answer."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The answer's body as ``change`` makes it."""

    change: Callable[[bytes], bytes]


Fault = CutBefore | CutAfter | Half | Shortened | Instead | Late | Earlier | Twice | Rewritten
Rule = Callable[[Call], Fault | None]


class Answer(NamedTuple):
    status: int
    body: bytes
    kind: str
    at: float


def refusal(code: str, *, status: int = 400) -> Instead:
    """An error as EC2 words it."""
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?><Response><Errors><Error><Code>{code}</Code><Message>said by the proxy'
        "</Message></Error></Errors><RequestID>p-1</RequestID></Response>"
    )
    return Instead(status, body.encode(), "text/xml")


class Proxy:
    """``with Proxy(url, seed="lost 7") as proxy``: ``proxy.url`` is answered as ``url``, but for what ``rules`` say.

    Of several rules the first that has a fault for a call counts. Safe to change at any time.
    """

    def __init__(self, upstream: str, *, seed: str) -> None:
        where = urlsplit(upstream)
        assert where.hostname is not None
        self.host, self.port = where.hostname, where.port
        self.rules: Sequence[Rule] = ()
        self.asked_for: dict[str, tuple[str, int]] = {}  # by a CreateFleet's token: whose it is, and how many machines
        self.made: dict[str, str] = {}  # by a machine's id, the token that it was launched with
        self.hits: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()  # by client
        self.writes: Counter[str] = Counter()  # by client
        self._seed = seed
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._answers: dict[tuple[object, ...], Answer] = {}
        self._lock = threading.Lock()
        self._server = _Server(self)

    def __enter__(self) -> Proxy:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    # --- for its connections ------------------------------------------------------------------------------------------

    def heard(self, body: bytes, headers: Mapping[str, str]) -> Call:
        parameters = dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
        action = parameters.get("Action") or headers.get("X-Amz-Target", "").rpartition(".")[2]
        signed = re.search(r"Credential=([^/]+)/", headers.get("Authorization", ""))
        client = signed[1] if signed else ""
        with self._lock:
            self._numbers[client, action] += 1
            self.calls[client] += 1
            self.writes[client] += not action.startswith(READS)
            number, serial = self._numbers[client, action], self.calls[client]
            if action == "CreateFleet":
                wanted = int(parameters["TargetCapacitySpecification.TotalTargetCapacity"])
                self.asked_for[parameters["ClientToken"]] = (client, wanted)
        luck = random.Random(f"{self._seed} {client} {action} {number}").random()
        return Call(action, parameters, client, number, serial, luck, json="X-Amz-Target" in headers)

    def fault(self, call: Call) -> Fault | None:
        found = next((fault for rule in self.rules if (fault := rule(call)) is not None), None)
        if found is not None:
            with self._lock:
                self.hits[f"{type(found).__name__} {call.action}"] += 1
        return found

    def answered(self, call: Call, answer: Answer) -> None:
        """What the cloud said, whatever is made of it on its way."""
        if call.action == "CreateFleet":
            token = call.parameters["ClientToken"]
            self.made |= {each.decode(): token for each in MACHINE.findall(answer.body)}

    def earlier(self, call: Call, fault: Earlier) -> Answer | None:
        before = self._answers.get(_question(call))
        return before if before is not None and time.time() - before.at <= fault.seconds else None

    def remember(self, call: Call, answer: Answer) -> None:
        if not call.writes:
            self._answers[_question(call)] = answer


def _question(call: Call) -> tuple[object, ...]:
    return (call.client, call.action, *sorted(call.parameters.items()))


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed closes its connections in the middle of what it is told."""


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        pass

    def do_POST(self) -> None:
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        call = proxy.heard(body, dict(self.headers))
        fault = proxy.fault(call)
        match fault:
            case CutBefore(reset=reset):
                self._cut(reset=reset)
            case Instead(asked=False):
                self._say(fault.status, fault.body, fault.kind)
            case Earlier() if (before := proxy.earlier(call, fault)) is not None:
                self._say(before.status, before.body, before.kind)
            case _:
                self._answer(call, body, fault)

    do_GET = do_PUT = do_POST  # noqa: N815 - http.server's names

    def _answer(self, call: Call, body: bytes, fault: Fault | None) -> None:
        answer = self._asked(call, body)
        if answer is None:
            return self._cut(reset=False)
        match fault:
            case None | Earlier():
                self.server.proxy.remember(call, answer)
                self._say(answer.status, answer.body, answer.kind)
            case CutBefore() | CutAfter():
                self._cut(reset=fault.reset)
            case Half():
                self._say(answer.status, answer.body[: len(answer.body) // 2], answer.kind, told=len(answer.body))
                self._cut(reset=False)
            case Shortened():
                self._say(answer.status, answer.body[: int(fault.part * len(answer.body))], answer.kind)
            case Instead():
                self._say(fault.status, fault.body, fault.kind)
            case Late():
                time.sleep(fault.seconds)
                self._say(answer.status, answer.body, answer.kind)
            case Rewritten():
                self._say(answer.status, fault.change(answer.body), answer.kind)
            case Twice():
                again = self._asked(call, body) or answer
                self._say(again.status, again.body, again.kind)
            case _:
                assert_never(fault)
        return None

    def _asked(self, call: Call, body: bytes) -> Answer | None:
        """None: the cloud itself has cut the connection."""
        upstream = http.client.HTTPConnection(self.server.proxy.host, self.server.proxy.port, timeout=UPSTREAM_S)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
        try:
            upstream.request(self.command, self.path, body, headers)
            got = upstream.getresponse()
            answer = Answer(got.status, got.read(), got.getheader("Content-Type") or "text/xml", time.time())
            self.server.proxy.answered(call, answer)
            return answer
        except (OSError, http.client.HTTPException):
            return None
        finally:
            upstream.close()

    def _say(self, status: int, body: bytes, kind: str, *, told: int | None = None) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body) if told is None else told))
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # whoever asked is gone
            self.close_connection = True

    def _cut(self, *, reset: bool) -> None:
        self.close_connection = True
        try:
            if reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            else:
                self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
