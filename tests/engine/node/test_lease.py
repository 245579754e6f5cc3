"""The executor renews the lease of its machine, where it has one, as long as its own client is heard."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.node import server
from outrider.engine.node.server import RENEW_S, MachineLease
from outrider.engine.wire import messages as m

pytestmark = pytest.mark.anyio


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "machine lease"
    file.touch()
    os.utime(file, (0, 0))
    return file


def is_renewed(file: Path) -> bool:
    """Since the last time it was asked."""
    renewed = file.stat().st_mtime != 0
    os.utime(file, (0, 0))
    return renewed


# --- the file ---------------------------------------------------------------------------------------------------------


def test_it_is_touched_at_once_and_not_too_often(file: Path) -> None:
    own = MachineLease(str(file))
    for now, due in ((5.0, True), (5.0 + RENEW_S / 2, False), (5.0 + RENEW_S, True), (5.1 + RENEW_S, False)):
        own.renew(now)
        assert is_renewed(file) is due


def test_what_hinders_it_is_told_once(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    own = MachineLease(str(file))
    file.unlink()
    for now in range(3):
        own.renew(now * RENEW_S)
    assert not file.exists()
    assert capfd.readouterr().err == f"the machine's lease {file} is not renewed: No such file or directory\n"
    file.touch()
    os.utime(file, (0, 0))
    own.renew(3 * RENEW_S)
    assert is_renewed(file)


def test_most_machines_have_none(capfd: pytest.CaptureFixture[str]) -> None:
    MachineLease("").renew(0.0)
    assert capfd.readouterr().err == ""


def _answered(client: Any) -> list[int]:
    return [each.sent_ms for each in client.heard if isinstance(each, m.Pong)]


# --- who is heard -----------------------------------------------------------------------------------------------------


async def test_a_greeting_and_each_heartbeat_renew_it(make: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RENEW_S", 0.0)
    client = await make(connect=False, lease_file=str(file))
    assert not is_renewed(file)
    await client.connect()
    assert is_renewed(file)
    for number in range(2):
        client.send(m.Ping(number))
        await client.until(lambda number=number: number in _answered(client))
        assert is_renewed(file)
    client.cut()
    await asyncio.sleep(0)
    assert not is_renewed(file)
    await client.connect()
    assert is_renewed(file)


async def test_nobody_elses_greeting_does(make: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RENEW_S", 0.0)
    client = await make(lease_file=str(file))
    client.cut()
    is_renewed(file)
    client.name = "another"
    assert isinstance(await client.connect(), m.Refused)
    assert not is_renewed(file)


async def test_a_task_that_goes_on_without_its_client_does_not(
    make: Any, file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(server, "RENEW_S", 0.0)

    def work() -> None:
        print("still here")
        (tmp_path / "done").touch()

    client = await make(lease_file=str(file))
    client.run(work)
    await client.turn()
    client.cut()
    is_renewed(file)
    async with asyncio.timeout(60):
        while not (tmp_path / "done").exists():
            await asyncio.sleep(0.005)
    assert not is_renewed(file)
