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

from outrider.actors.interfaces import ConnectFailed
from outrider.engine.image.commands import CommandResult, CommandRunner
from outrider.engine.transport import bootstrapped_route
from outrider.engine.transport.bootstrapped_route import RENEWALS, LeaseRenewal

pytestmark = pytest.mark.anyio
PATIENCE_S = 60.0


class Here:
    """Commands run on this computer, whose connection may be lost."""

    lost = False
    failed = 0

    async def run(self, argv: Sequence[str], **_: Any) -> CommandResult:
        if self.lost:
            self.failed += 1
            raise ConnectionResetError("the connection was lost")
        ended = subprocess.run(argv, check=False, capture_output=True)
        return CommandResult(ended.returncode, None, ended.stdout, ended.stderr)


class Stuck:
    """No command ever ends here."""

    def __init__(self, commands: int) -> None:
        self.commands: list[Sequence[str]] = []
        self.enough = asyncio.Event()
        self._expected = commands

    async def run(self, argv: Sequence[str], **_: Any) -> CommandResult:
        self.commands.append(argv)
        if len(self.commands) == self._expected:
            self.enough.set()
        await asyncio.Event().wait()
        raise AssertionError


@asynccontextmanager
async def renewing(shell: CommandRunner, file: Path, lease_s: float = 0.05) -> AsyncIterator[None]:
    renewal = LeaseRenewal(shell, str(file), lease_s, checked=False)
    try:
        yield
        assert not renewal._task.done()
    finally:
        renewal.close()
        await asyncio.wait([renewal._task])
        assert renewal._task.cancelled()


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


async def test_a_long_lease_is_renewed_as_often_as_a_shorter_one_of_an_adopted_machine_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrapped_route, "MOST_S", 0.01)
    (file := tmp_path / "lease").touch()
    async with renewing(Here(), file, 3600.0):
        await touched(file)
        await touched(file)


async def test_a_command_that_hangs_is_given_up_and_started_again() -> None:
    stuck = Stuck(3)
    async with renewing(stuck, Path("/lease"), 0.01 * RENEWALS):
        await asyncio.wait_for(stuck.enough.wait(), PATIENCE_S)
    assert stuck.commands == [["touch", "-c", "--", "/lease"]] * 3


# --- the first contact: LEASE-1 ---------------------------------------------------------------------------------------


async def work(done: list[str], gate: asyncio.Event | None = None) -> str:
    try:
        if gate is not None:
            await gate.wait()
        done.append("done")
        return "the executor"
    except asyncio.CancelledError:
        done.append("cancelled")
        raise


@pytest.mark.parametrize("name", ["lease", "a b;c", "-d 1", "$HOME'\""])
async def test_an_armed_lease_is_seen_and_renewed_and_the_work_done(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path(name)
    file.touch()
    os.utime(file, (0, 0))
    renewal = LeaseRenewal(Here(), str(file), 1000, checked=True)
    try:
        assert await renewal.during(work([]), "i-1") == "the executor"
        assert file.stat().st_mtime > 0
    finally:
        renewal.close()


@pytest.mark.parametrize("there", [False, True])
async def test_a_machine_without_an_armed_lease_is_refused_at_once(tmp_path: Path, there: bool) -> None:
    """The file is not there, or whatever touches it changes nothing."""
    file, done = tmp_path / "lease", list[str]()
    if there:
        file.touch()

    class Frozen(Here):
        async def run(self, argv: Sequence[str], **_: Any) -> CommandResult:
            return await super().run([*argv[:2], f"touch() {{ :; }}; {argv[2]}", *argv[3:]])

    renewal = LeaseRenewal(Frozen(), str(file), 1000, checked=True)
    try:
        with pytest.raises(ConnectFailed, match="the lease of machine i-1 is not armed") as refused:
            await asyncio.wait_for(renewal.during(work(done, asyncio.Event()), "i-1"), PATIENCE_S)
    finally:
        renewal.close()
    assert refused.value.fatal
    assert not refused.value.systematic
    assert done == ["cancelled"]
    assert file.exists() == there


async def test_work_that_fails_before_the_lease_was_seen_says_why(tmp_path: Path) -> None:
    async def fails() -> str:
        raise ConnectionResetError("the connection was lost")

    renewal = LeaseRenewal(Stuck(1), str(tmp_path / "lease"), 1000, checked=True)
    try:
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(renewal.during(fails(), "i-1"), PATIENCE_S)
    finally:
        renewal.close()


async def test_the_invariant_falls_without_its_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-1"""
    monkeypatch.setattr(bootstrapped_route, "CHECK_LEASE", "exit 0")
    monkeypatch.setitem(globals(), "PATIENCE_S", 0.2)
    with pytest.raises(TimeoutError):
        await test_a_machine_without_an_armed_lease_is_refused_at_once(tmp_path, there=True)
