"""The cloud's WSGI application: it applies faults to requests, and answers them itself or through moto."""

from __future__ import annotations

import io
import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import field, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode
from xml.sax.saxutils import escape

from ....lazy_dataclass import dataclass
from . import (
    describe,
    fleet,
    groups,
    images,
    instance_types,
    launch,
    placement,
    prices,
    services,
    tags,
    templates,
    terminate,
)
from .call import Actions, CloudCall
from .faults import CallRefused, ExpiredToken, HalfAnswer, LostAnswer, LostRequest, Slow, Throttle, Unauthorized
from .protocol import USER, Ask, EC2Error, parse, render, render_error, unauthorized
from .state import CloudState, Region
from .throttle import limit_exceeded

Environ = dict[str, Any]
ACTIONS: Actions = {
    **describe.ACTIONS,
    **terminate.ACTIONS,
    **fleet.ACTIONS,
    **images.ACTIONS,
    **instance_types.ACTIONS,
    **launch.ACTIONS,
    **placement.ACTIONS,
    **prices.ACTIONS,
    **tags.ACTIONS,
    **templates.ACTIONS,
}
CHECKIP = "/checkip"
XML, JSON = "text/xml;charset=UTF-8", "application/x-amz-json-1.1"


@dataclass(frozen=True, slots=True)
class Request:
    """The properties of a signed request before its body is parsed."""

    service: str
    region: str
    key: str  # the access key that signed it
    action: str  # empty if the request names no action (S3)
    body: bytes
    environ: Environ

    @property
    def parameters(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode(), keep_blank_values=True))


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes
    kind: str = XML
    headers: tuple[tuple[str, str], ...] = field(default=())


class CloudApp:
    """The WSGI application."""

    def __init__(self, state: CloudState) -> None:
        self.state = state
        self.calls: Counter[str] = Counter()
        self._counting = threading.Lock()

    def __call__(self, environ: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"].rstrip("/") == CHECKIP:
            return _sent(Reply(200, b"127.0.0.1\n", "text/plain"), start)
        request = _read(environ)
        if request is None:  # the request is not signed, or for S3
            return self.state.moto.app(environ, start)
        faults, action = self.state.faults, request.action
        with self._counting:
            self.calls[action] += 1
        if faults.first_of(LostRequest, action) is not None:
            return _cut(environ)
        reply = self._reply(request)
        slow = faults.first_of(Slow, action)
        if slow is not None:
            self.state.clock.sleep(slow.seconds)
        if faults.first_of(LostAnswer, action) is not None:
            return _cut(environ)
        half = faults.first_of(HalfAnswer, action)
        if half is not None:
            return _halved(reply, environ, start, valid_http=half.valid_http)
        return _sent(reply, start)

    def _reply(self, request: Request) -> Reply:
        try:
            self._let_in(request)
            if request.service == "ec2":
                return self._ec2(request)
            answer = services.answer(self.state, request.service, request.region, request.action, request.body)
            if answer is not None:
                return Reply(200, json.dumps(answer).encode(), JSON)
        except EC2Error as error:
            return _refusal(request, error, self._request_id())
        except Exception as error:  # noqa: BLE001 - a defect of the test cloud: raised when it ends
            self.state.failures.append(error)
            return _refusal(request, EC2Error("InternalError", repr(error), 500), self._request_id())
        return _forwarded(self.state, request)

    def _let_in(self, request: Request) -> None:
        """Apply the faults and checks that precede the call itself.

        Raises:
            EC2Error: The call is refused.
        """
        faults, action, ec2 = self.state.faults, request.action, request.service == "ec2"
        for expired in faults.of(ExpiredToken):
            if expired.key in (None, request.key) and expired.action in (None, action) and faults.happens(expired):
                code = "RequestExpired" if ec2 else "ExpiredTokenException"
                raise EC2Error(
                    code, "Request has expired." if ec2 else "The security token included in the request is expired"
                )
        services.check_date(self.state, request.environ.get("HTTP_X_AMZ_DATE"))
        if faults.first_of(Throttle, action) is not None:
            raise limit_exceeded() if ec2 else EC2Error("ThrottlingException", "Rate exceeded")
        refused = faults.first_of(CallRefused, action)
        if refused is not None:
            raise EC2Error(refused.code, refused.message, refused.status)
        if faults.first_of(Unauthorized, action) is not None:
            raise _denied(request)

    def _ec2(self, request: Request) -> Reply:
        action, parameters = request.action, request.parameters
        with self.state.lock:
            try:
                region = self.state.region(request.region)
            except KeyError:
                words = "AWS was not able to validate the provided access credentials"
                raise EC2Error("AuthFailure", words, 401) from None
            if self.state.behaviour.throttled:
                narrowed = any(re.match(r"(MaxResults|Filter\.|\w+Id\.)", name) for name in parameters)
                region.buckets.take(action, narrowed=narrowed)
            if action in ("CreateTags", "DeleteTags"):
                return self._tags(request, region)
            if action not in ACTIONS:
                return self._network(request, region)
            call = CloudCall(region, action, parse(action, parameters), self.state.age_of_answers())
            _dry(call)
            return Reply(200, render(action, ACTIONS[action](call), self._request_id()))

    def _tags(self, request: Request, region: Region) -> Reply:
        """Tag resources of this cloud and of moto, which one call may mix."""
        call = CloudCall(region, request.action, parse(request.action, request.parameters), self.state.age_of_answers())
        _dry(call)
        ours, theirs = tags.split(call.ask["Resources"])
        region.check_young(theirs, call.ago)
        if ours:
            call = CloudCall(region, call.action, Ask(call.ask | {"Resources": ours}), call.ago)
            ACTIONS[call.action](call)
        if not theirs:
            return Reply(200, render(call.action, {}, self._request_id()))
        rest = {key: value for key, value in request.parameters.items() if not key.startswith("ResourceId.")}
        rest |= {f"ResourceId.{place}": each for place, each in enumerate(theirs, 1)}
        return _forwarded(self.state, request, urlencode(rest).encode())

    def _network(self, request: Request, region: Region) -> Reply:
        """Answer through moto, for resources that moto stores."""
        call = CloudCall(region, request.action, Ask(), self.state.age_of_answers())
        groups.check(call, request.parameters)
        if any(region.instances.get(each) is not None for each in request.parameters.values()):
            words = f"The test cloud does not know how to {request.action} what is an instance"
            raise EC2Error("UnsupportedOperation", words)
        reply = _forwarded(self.state, request)
        return replace(reply, body=groups.heard(call, reply.body)) if reply.status == 200 else reply

    def _request_id(self) -> str:
        return self.state.new_request_id()


def _denied(request: Request) -> EC2Error:
    if request.service == "ec2":
        return unauthorized(request.action)
    words = f"User: {USER} is not authorized to perform: {request.service}:{request.action}"
    return EC2Error("AccessDeniedException", words)


def _dry(call: CloudCall) -> None:
    if call.ask.get("DryRun"):
        raise EC2Error("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)


def _read(environ: Environ) -> Request | None:
    signed = re.search(r"Credential=([^/]+)/\d+/([^/]+)/([^/]+)/aws4_request", environ.get("HTTP_AUTHORIZATION", ""))
    if signed is None or signed[3] == "s3":
        return None
    length = int(environ.get("CONTENT_LENGTH") or 0)
    body = environ["wsgi.input"].read(length)
    if len(body) < length:
        raise ConnectionResetError("its sender died in the middle of a request")
    environ["wsgi.input"] = io.BytesIO(body)
    action = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
    if not action:
        named = re.search(rb"(?:^|&)Action=(\w+)", body)
        action = named[1].decode() if named else ""
    return Request(signed[3], signed[2], signed[1], action, body, environ)


def _forwarded(state: CloudState, request: Request, body: bytes | None = None) -> Reply:
    response: list[Any] = []
    body = request.body if body is None else body
    environ = {**request.environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
    with state.moto.lock if request.service == "ec2" else nullcontext():
        content = b"".join(state.moto.app(environ, lambda *status_and_headers: response.extend(status_and_headers)))
    headers = tuple(
        (name, value) for name, value in response[1] if name.lower() not in ("content-type", "content-length")
    )
    kind = {name.lower(): value for name, value in response[1]}.get("content-type", XML)
    return Reply(int(response[0].split()[0]), content, kind, headers)


def _refusal(request: Request, error: EC2Error, request_id: str) -> Reply:
    """Render an error in the service's own format."""
    if request.service == "ec2":
        return Reply(error.status, render_error(error, request_id))
    if request.environ.get("HTTP_X_AMZ_TARGET"):
        body = json.dumps({"__type": error.code, "message": error.message}).encode()
        return Reply(error.status, body, JSON, (("x-amzn-ErrorType", error.code),))
    inside = f"<Type>Sender</Type><Code>{escape(error.code)}</Code><Message>{escape(error.message)}</Message>"
    answer = f"<ErrorResponse><Error>{inside}</Error><RequestId>{request_id}</RequestId></ErrorResponse>"
    return Reply(error.status, answer.encode())


def _sent(reply: Reply, start: Callable[..., Any]) -> Iterable[bytes]:
    headers = [("Content-Type", reply.kind), ("Content-Length", str(len(reply.body))), *reply.headers]
    start(f"{reply.status} {_REASONS.get(reply.status, 'Error')}", headers)
    return [reply.body]


_REASONS: Mapping[int, str] = {200: "OK", 400: "Bad Request", 403: "Forbidden", 500: "Internal Server Error"}


def _halved(reply: Reply, environ: Environ, start: Callable[..., Any], *, valid_http: bool) -> Iterable[bytes]:
    half = reply.body[: len(reply.body) // 2]
    if valid_http:
        return _sent(replace(reply, body=half), start)
    _sent(reply, start)
    return _and_no_more(half, environ)


def _and_no_more(half: bytes, environ: Environ) -> Iterator[bytes]:
    yield half
    connection: socket.socket = environ["werkzeug.socket"]
    connection.shutdown(socket.SHUT_RDWR)


def _cut(environ: Environ) -> Iterable[bytes]:
    """Close the connection without an answer; the server detects this when it writes."""
    connection: socket.socket = environ["werkzeug.socket"]
    connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError
