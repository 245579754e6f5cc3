"""`outrider ui` says what it cannot do. What it serves is tested in tests/engine/ui."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outrider.engine.api.errors import SpecError
from outrider.engine.cli.main import app

if TYPE_CHECKING:
    from .conftest import Outrider


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))


def test_a_port_that_is_taken_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SpecError, match=f"--port {port} of 127.0.0.1 cannot be used: another program has it"):
            app(["ui", "--port", str(port)])


def test_options_that_cannot_be_are_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="from 0 to 65535"):
        app(["ui", "--port", "70000"])
    with pytest.raises(SpecError, match="neither --port nor --open"):
        app(["ui", "--socket", str(tmp_path / "s"), "--open"])


@pytest.mark.parametrize("content", [b"", b"short\n", b"x" * 2000, b"two words are no token\n", b"\xff" * 20])
def test_a_file_that_has_no_token_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=r"--metrics-token .*token (has no token|cannot be used)"):
        app(["ui", "--metrics-token", str(path)])
    with pytest.raises(SpecError, match="cannot be used: No such file"):
        app(["ui", "--metrics-token", str(tmp_path / "none" / "token")])


def test_a_socket_is_not_put_where_others_may_enter(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(SpecError, match="others may enter its folder"):
        app(["ui", "--socket", str(folder / "socket")])
    folder.chmod(0o700)
    (folder / "socket").write_text("a file")
    with pytest.raises(SpecError, match="something is there already"):
        app(["ui", "--socket", str(folder / "socket")])
    assert (folder / "socket").read_text() == "a file"


def test_a_socket_on_which_somebody_listens_stays(tmp_path: Path) -> None:
    path = tmp_path / "private" / "socket"
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(os.path.relpath(path))
        theirs.listen()
        with pytest.raises(SpecError, match="something is there already"):
            app(["ui", "--socket", str(path)])
    assert path.exists()


def test_without_the_extra_it_says_how_to_install_it(outrider: Outrider, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in sys.modules if name.startswith(("outrider.engine.record.ui", "uvicorn", "starlette"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert outrider("ui") == 2
    outrider.said()
    assert outrider.errors == "outrider: ui needs a part that is not installed: pip install 'outrider[ui]'\n"
