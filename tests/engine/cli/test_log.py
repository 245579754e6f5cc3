"""`outrider log` writes to the socket of the worker whose task has started it, and says what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.cli.log import log, main
from outrider.engine.node.log_socket import LogSocket
from outrider.engine.record import log_calls


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = LogSocket(tmp_path / "log-1")
    monkeypatch.setenv("OUTRIDER_LOG", made.path)
    monkeypatch.setattr(log_calls._Elsewhere, "client", None)
    monkeypatch.setattr(log_calls._Elsewhere, "warned", False)
    yield made
    made.close()
    if (client := log_calls._Elsewhere.client) is not None:
        client.close()


def received(server: LogSocket) -> list[dict[str, Any]]:
    found = []
    for data, fds in server.receive():
        found += [json.loads(line) for line in data.splitlines()]
        for fd in fds:
            os.close(fd)
    assert all(each.pop("at") > 0 for each in found)
    return found


def test_numbers_texts_settings_and_files_are_logged(server: LogSocket, tmp_path: Path) -> None:
    (tmp_path / "best.pt").write_bytes(b"weights")
    words = [
        "loss=0.3",
        "worst=nan",
        "--step",
        "7",
        "--text",
        "fine",
        "--name",
        "status",
        "--param",
        "lr=0.1",
        "--param",
        "n=3",
    ]
    assert main([*words, "--param", "kind=sgd", "--artifact", str(tmp_path / "best.pt")]) == 0
    metrics, text, params, artifact = received(server)
    assert (metrics["step"], metrics["values"]["loss"]) == (7, 0.3)
    assert text == {"step": 7, "name": "status", "text": "fine"}
    assert params == {"params": {"lr": 0.1, "n": 3, "kind": "sgd"}}
    assert (artifact["artifact"], artifact["size_bytes"]) == ("status", 7)


def test_the_command_and_the_module_do_the_same(server: LogSocket) -> None:
    for command in ([str(Path(sys.executable).with_name("outrider"))], [sys.executable, "-m", "outrider"]):
        subprocess.run([*command, "log", "loss=-1e-3", "--step", "-1"], check=True)
        assert received(server) == [{"step": -1, "values": {"loss": -0.001}}]


def test_a_node_needs_no_cyclopts(server: LogSocket, tmp_path: Path) -> None:
    (tmp_path / "cyclopts.py").write_text("raise ImportError")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, "-m", "outrider", "log", "loss=1"], check=True, env=env)
    assert received(server) == [{"step": None, "values": {"loss": 1.0}}]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "there is nothing to be logged: outrider log loss=0.3 --step 7"),
        (["loss"], "give values as NAME=VALUE, not 'loss'"),
        (["loss=high"], "loss is no number: 'high'; --text logs texts, and --param settings"),
        (["--text", "x" * 70_000], "log_text takes at most 65536 characters"),
        (["--artifact", "/nowhere"], "/nowhere cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_understood_is_said(
    server: LogSocket, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert f"outrider: {said}" in capsys.readouterr().err
    assert received(server) == []


def test_a_node_that_has_gone_is_an_exit_code(server: LogSocket, capsys: pytest.CaptureFixture[str]) -> None:
    server.close()
    assert log("loss=1") == 1
    assert "what this process logs is lost" in capsys.readouterr().err


def test_outside_of_tasks_it_says_what_it_is_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OUTRIDER_LOG", raising=False)
    assert log("loss=1") == 2
    assert "log is for what a task of a pool has started: OUTRIDER_LOG is not set here" in capsys.readouterr().err
