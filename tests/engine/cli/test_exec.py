"""`outrider exec` leaves no command behind, and nothing of asyncio's that complains later."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from outrider.engine.cli import ssh
from outrider.engine.cli.node_choice import Reached
from outrider.engine.cli.ssh import Command, Ended, Lines


def nodes(count: int) -> list[Reached]:
    return [Reached(f"node {number}", "m", number=number) for number in range(count)]


def test_all_commands_are_ended_when_nobody_reads_what_two_of_them_print(tmp_path: Path) -> None:
    """Printing fails for a node while the command of another is being ended."""
    pids = tmp_path / "pids"
    script = f"trap 'sleep 0.2; exit' TERM; echo $$ >> {pids}; echo line; sleep 60 & wait"

    def nobody_reads(_: Reached, what: Lines | Ended) -> None:
        assert isinstance(what, Lines)
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        asyncio.run(ssh._on_all(nodes(4), ["sh", "-c", script], nobody_reads))
    gc.collect()  # a transport that asyncio has not closed says so now
    assert (started := [int(line) for line in pids.read_text().split()])
    assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []


def test_after_ctrl_c_a_process_of_another_session_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the command's output open, and is not in its process group."""
    monkeypatch.setattr(ssh, "END_S", 0.1)
    pids = list[int]()

    def interrupted(_: Reached, what: Lines | Ended) -> None:
        assert isinstance(what, Lines)
        pids.extend(int(line) for line in what.lines)
        if len(pids) == 2:
            signal.raise_signal(signal.SIGINT)

    script = "setsid sh -c 'echo $$; exec sleep 60' & echo $$; exec sleep 60"
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(ssh._on_all(nodes(1), ["sh", "-c", script], interrupted))
        gc.collect()
        assert len([pid for pid in pids if Path(f"/proc/{pid}").exists()]) == 1
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_command_that_may_not_be_ended_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of another user, under sudo."""
    monkeypatch.setattr(ssh, "END_S", 0.01)
    tried = list[str]()

    def denied(_: int = 0, number: int = 0) -> None:
        tried.append(signal.Signals(number).name if number else "close")
        raise PermissionError(1, "Operation not permitted")

    async def end() -> None:
        command = Command(lambda _: None)
        monkeypatch.setattr(command, "_transport", SimpleNamespace(get_pid=int, close=denied), raising=False)
        await command.end()

    monkeypatch.setattr(os, "killpg", denied)
    asyncio.run(end())
    assert tried == ["SIGTERM", "SIGKILL", "close"]


def test_a_second_ctrl_c_ends_a_command_that_ignores_the_first() -> None:
    pids = list[int]()

    def interrupted(_: Reached, what: Lines | Ended) -> None:
        assert isinstance(what, Lines)
        pids.extend(int(line) for line in what.lines)
        signal.raise_signal(signal.SIGINT)
        asyncio.get_running_loop().call_later(0.1, signal.raise_signal, signal.SIGINT)

    script = "trap '' TERM; echo $$; exec sleep 60"
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(ssh._on_all(nodes(1), ["sh", "-c", script], interrupted))
    gc.collect()
    assert not Path(f"/proc/{pids[0]}").exists()
