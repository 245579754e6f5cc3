"""Who logs is told what is wrong, and is ended by nothing: neither by a node that has gone, nor by a fork."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from outrider import log_artifact, log_metrics, log_params, log_text
from outrider.engine.node.log_socket import PATIENCE_S, LogSocket
from outrider.engine.record import log_calls


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_calls._Elsewhere, "client", None)
    monkeypatch.setattr(log_calls._Elsewhere, "warned", False)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The socket of a worker, to which this process logs as one that a task has started."""
    made = LogSocket(tmp_path / "log-1")
    monkeypatch.setenv("OUTRIDER_LOG", made.path)
    yield made
    made.close()
    if (client := log_calls._Elsewhere.client) is not None:
        client.close()


def received(server: LogSocket) -> list[dict[str, Any]]:
    found = [json.loads(line) for data, _ in server.receive() for line in data.splitlines()]
    assert all(each.pop("at") > 0 for each in found)
    return found


def is_open_here(path: Path) -> bool:
    """Whether a descriptor of this process is one of this file: others come and go, as earlier tests' rest does."""
    found = list[str]()
    for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(OSError):  # the listing's own
            found.append(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115
    return str(path) in found


def test_each_call_is_a_record(server: LogSocket, tmp_path: Path) -> None:
    log_metrics({"loss": 0.5}, step=7)
    log_text("all is well", name="status")
    log_params({"lr": 0.1})
    (tmp_path / "empty").touch()
    log_artifact(tmp_path / "empty")
    assert received(server) == [
        {"step": 7, "values": {"loss": 0.5}},
        {"step": None, "name": "status", "text": "all is well"},
        {"params": {"lr": 0.1}},
        {"artifact": "empty", "size_bytes": 0,
         "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    ]  # fmt: skip
    (tmp_path / "best.pt").write_bytes(b"weights")
    log_artifact(str(tmp_path / "best.pt"), "weights")
    ((line, (fd,)),) = server.receive()
    assert (json.loads(line)["artifact"], os.pread(fd, 100, 0)) == ("weights", b"weights")
    os.close(fd)


def test_a_node_that_has_gone_is_told_of_once(server: LogSocket, capsys: pytest.CaptureFixture[str]) -> None:
    log_metrics({"loss": 0.5})
    server.close()
    for _ in range(3):
        log_metrics({"loss": 0.5})
    told = capsys.readouterr().err
    assert told == "outrider: what this process logs is lost: the node does not take it (Connection refused)\n"
    assert log_calls.has_lost()


def test_a_node_that_does_not_read_is_waited_for_once(server: LogSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be stopped: who trains goes on. What the node reads again is logged as before."""
    waits: list[float | None] = []

    class Slow(socket.socket):
        def sendmsg(self, *_: Any) -> int:
            waits.append(self.gettimeout())
            raise TimeoutError if self.gettimeout() else BlockingIOError

    with monkeypatch.context() as patched:
        patched.setattr("outrider.engine.node.log_socket.socket.socket", Slow)
        for _ in range(3):
            log_metrics({"loss": 0.5})
    assert waits == [PATIENCE_S, 0.0, 0.0]
    assert log_calls.has_lost()


def test_descriptors_that_were_closed_are_opened_again(server: LogSocket) -> None:
    log_metrics({"loss": 0.5})
    assert log_calls._Elsewhere.client is not None
    assert log_calls._Elsewhere.client._sock is not None
    os.close(log_calls._Elsewhere.client._sock.detach())
    log_metrics({"loss": 0.25})
    assert [each["values"]["loss"] for each in received(server)] == [0.5, 0.25]
    assert not log_calls.has_lost()


def test_a_file_is_one_and_not_too_large(server: LogSocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError):
        log_artifact(tmp_path / "none")
    with pytest.raises(IsADirectoryError, match="log_artifact takes files, so pack a folder into one"):
        log_artifact(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(IsADirectoryError):
        log_artifact(tmp_path / "fifo")
    (tmp_path / "large").write_bytes(bytes(11))
    monkeypatch.setattr(log_calls, "ARTIFACT_BYTES", 10)
    with pytest.raises(ValueError, match="large has 11 bytes, and log_artifact takes at most 10: keep larger files by"):
        log_artifact(tmp_path / "large")
    assert not is_open_here(tmp_path / "large")
    assert received(server) == []


def test_outside_of_everything_with_records_off_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTRIDER_LOG", raising=False)
    monkeypatch.setenv("OUTRIDER_RUNS", "0")
    log_metrics({"loss": 0.5})
    assert not log_calls.has_lost()
