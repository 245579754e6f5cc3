"""What adapters log, as the node of a task receives it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.node.log_socket import LogSocket
from outrider.engine.record import log_calls

Received = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def received(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    """What this process has logged since the last call, as one that a task has started."""
    monkeypatch.setattr(log_calls._Elsewhere, "client", None)
    server = LogSocket(tmp_path / "log-1")
    monkeypatch.setenv("OUTRIDER_LOG", server.path)

    def received() -> list[dict[str, Any]]:
        found = [json.loads(line) for data, _ in server.receive() for line in data.splitlines()]
        return [{name: value for name, value in each.items() if name != "at"} for each in found]

    yield received
    server.close()
    if (client := log_calls._Elsewhere.client) is not None:
        client.close()
