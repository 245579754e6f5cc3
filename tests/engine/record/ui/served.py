"""The command `outrider ui` as a process of its own, and what it answers."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

PATIENCE_S = 120.0


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str


class Ui:
    """A server. ``url``: that it has printed; ``state``: the folder that has its `runs`."""

    def __init__(self, state: Path, *options: str) -> None:
        environment = {**os.environ, "OUTRIDER_STATE": str(state), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "outrider", "ui", "--json", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert self.process.stdout is not None
        said = ""
        for line in self.process.stdout:
            said += line
            if line.startswith("}"):
                break
        assert said, self.process.communicate()[1]
        self.said: dict[str, Any] = json.loads(said)
        self.url: str = self.said["url"]
        parts = urlsplit(self.url)
        self.port = parts.port
        self.token = parse_qs(parts.query)["token"][0]
        self.cookie = f"outrider-ui{f'-{self.port}' if self.port else ''}={self.token}"

    def connection(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        if self.said["socket"]:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(self.said["socket"])
        return connection

    def ask(self, path: str, method: str = "GET", *, cookie: bool = True, **headers: str) -> Answer:
        connection = self.connection()
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=said | ({"cookie": self.cookie} if cookie else {}))
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)

    def act(self, path: str) -> Answer:
        return self.ask(path, "POST", origin=f"http://127.0.0.1:{self.port}")

    def stream(self, path: str, cursor: str = "") -> Stream:
        return Stream(self, path, cursor)

    def end(self, by: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        """End it by a signal; return its exit code, and what was on stderr."""
        self.process.send_signal(by)
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, errors


class Stream:
    """The messages of a page's stream."""

    def __init__(self, ui: Ui, path: str, cursor: str) -> None:
        self._connection = ui.connection()
        self._connection.request("GET", f"{path}?from={cursor}", headers={"cookie": ui.cookie})
        self.answer = self._connection.getresponse()

    def messages(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each message with its cursor, until the server ends it."""
        cursor = ""
        while line := self.answer.readline():
            if line.startswith(b"id: "):
                cursor = line[4:].strip().decode()
            elif line.startswith(b"data: "):
                yield cursor, json.loads(line[6:])

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


@contextmanager
def serving(state: Path, *options: str) -> Iterator[Ui]:
    ui = Ui(state, *options)
    try:
        yield ui
    finally:
        if ui.process.poll() is None:
            ui.process.kill()
        ui.process.communicate()
