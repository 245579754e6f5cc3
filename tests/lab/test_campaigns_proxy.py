"""What the campaigns' proxy does to answers, seen over HTTP."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from campaigns.proxy import (
    Call,
    CutAfter,
    CutBefore,
    Earlier,
    Fault,
    Half,
    Instead,
    Late,
    Proxy,
    Rewritten,
    Shortened,
    Twice,
)

QUESTION = "Action=DescribeInstances&Version=2016-11-15"
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=AKIA7/20260101/us-east-1/ec2/aws4_request"}


class Numbered(ThreadingHTTPServer):
    """Answers every request with how many there have been."""

    daemon_threads = True

    def __init__(self) -> None:
        self.asked = 0
        super().__init__(("127.0.0.1", 0), _Answers)


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Numbered

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked += 1
        body = b"%08d" % self.server.asked
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def between(fault: Fault | None) -> Iterator[tuple[Proxy, Numbered]]:
    """A proxy whose every call suffers that, and what is behind it."""
    with Numbered() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            with Proxy(f"http://127.0.0.1:{server.server_port}", seed="test") as proxy:
                proxy.rules = [lambda _: fault]
                yield proxy, server
        finally:
            server.shutdown()
            thread.join()


def ask(proxy: Proxy, body: str = QUESTION) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", int(proxy.url.rpartition(":")[2]), timeout=60)
    try:
        connection.request("POST", "/", body, SIGNED)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("fault", "answer", "asked"),
    [
        (None, (200, b"00000001"), 1),
        (Shortened(0.5), (200, b"0000"), 1),
        (Shortened(0.0), (200, b""), 1),
        (Instead(503, b"busy"), (503, b"busy"), 0),
        (Instead(503, asked=True), (503, b""), 1),
        (Late(0.01), (200, b"00000001"), 1),
        (Twice(), (200, b"00000002"), 2),
        (Rewritten(lambda body: body[::-1]), (200, b"10000000"), 1),
    ],
)
def test_an_answer_that_is_whole_http(fault: Fault | None, answer: tuple[int, bytes], asked: int):
    with between(fault) as (proxy, server):
        assert ask(proxy) == answer
        assert server.asked == asked


@pytest.mark.parametrize(
    ("fault", "error", "asked"),
    [
        (CutBefore(), http.client.RemoteDisconnected, 0),
        (CutBefore(reset=True), ConnectionResetError, 0),
        (CutAfter(), http.client.RemoteDisconnected, 1),
        (CutAfter(reset=True), ConnectionResetError, 1),
        (Half(), http.client.IncompleteRead, 1),
    ],
)
def test_an_answer_that_is_cut(fault: Fault, error: type[Exception], asked: int):
    with between(fault) as (proxy, server):
        with pytest.raises(error):
            ask(proxy)
        assert server.asked == asked


def test_an_earlier_answer_to_the_same_question():
    with between(Earlier(60.0)) as (proxy, _):
        assert [ask(proxy)[1] for _ in range(2)] == [b"00000001"] * 2
        assert ask(proxy, "Action=DescribeInstances&Other=1")[1] == b"00000002"
        proxy.rules = [lambda _: Earlier(0.0)]
        assert ask(proxy)[1] == b"00000003"


def test_a_calls_luck_is_that_of_its_seed():
    heard: list[Call] = []

    def rule(call: Call) -> None:
        heard.append(call)

    for _ in range(2):
        with between(None) as (proxy, _):
            proxy.rules = [rule]
            for action in ("DescribeInstances", "CreateTags", "DescribeInstances"):
                ask(proxy, f"Action={action}")
    first, again = heard[:3], heard[3:]
    assert [call.luck for call in first] == [call.luck for call in again]
    assert len({call.luck for call in first}) == 3
    assert [(call.client, call.number, call.serial, call.writes) for call in first] == [
        ("AKIA7", 1, 1, False),
        ("AKIA7", 1, 2, True),
        ("AKIA7", 2, 3, False),
    ]
