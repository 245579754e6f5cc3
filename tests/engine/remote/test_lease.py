"""The client renews a machine's lease as long as the executor there does not."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.image.shell import Exit, Shell
from outrider.engine.remote.lease import RENEWALS, renew

pytestmark = pytest.mark.anyio
PATIENCE_S = 10.0


class Here:
    """Commands run on this computer, whose connection may be lost."""

    lost = False
    failed = 0

    async def run(self, argv: Sequence[str], **_: Any) -> Exit:
        if self.lost:
            self.failed += 1
            raise ConnectionResetError("the connection was lost")
        ended = subprocess.run(argv, check=False, capture_output=True)
        return Exit(ended.returncode, None, ended.stdout, ended.stderr)


class Stuck:
    """No command ever ends here."""

    def __init__(self, commands: int) -> None:
        self.commands: list[Sequence[str]] = []
        self.enough = asyncio.Event()
        self._expected = commands

    async def run(self, argv: Sequence[str], **_: Any) -> Exit:
        self.commands.append(argv)
        if len(self.commands) == self._expected:
            self.enough.set()
        await asyncio.Event().wait()
        raise AssertionError


@asynccontextmanager
async def renewing(shell: Shell, file: Path, lease_s: float = 0.05) -> AsyncIterator[None]:
    task = asyncio.ensure_future(renew(shell, str(file), lease_s))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def touched(file: Path) -> None:
    """Until somebody has."""
    os.utime(file, (0, 0))
    async with asyncio.timeout(PATIENCE_S):
        while file.stat().st_mtime == 0:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("name", ["lease", "a b;c", "-d 1", "$HOME'\""])
async def test_it_is_renewed_again_and_again(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path(name)
    file.touch()
    async with renewing(Here(), file):
        for _ in range(3):
            await touched(file)


async def test_it_is_renewed_at_once(tmp_path: Path) -> None:
    file = tmp_path / "lease"
    file.touch()
    async with renewing(Here(), file, lease_s=1000):
        await touched(file)


async def test_a_file_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    file, other = tmp_path / "lease", tmp_path / "other"
    async with renewing(Here(), file), renewing(Here(), other):
        other.touch()
        for _ in range(2):
            await touched(other)
        assert not file.exists()
        file.touch()
        await touched(file)


async def test_a_failure_is_silent_and_tried_again(tmp_path: Path) -> None:
    file, here = tmp_path / "lease", Here()
    file.touch()
    async with renewing(here, file):
        await touched(file)
        here.lost = True
        async with asyncio.timeout(PATIENCE_S):
            while here.failed < 2:
                await asyncio.sleep(0.005)
        here.lost = False
        await touched(file)


async def test_a_command_that_hangs_is_given_up_and_started_again() -> None:
    stuck = Stuck(3)
    async with renewing(stuck, Path("/lease"), 0.01 * RENEWALS):
        await asyncio.wait_for(stuck.enough.wait(), PATIENCE_S)
    assert stuck.commands == [["touch", "-c", "--", "/lease"]] * 3
