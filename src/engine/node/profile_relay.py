"""The node's side of profiles: it passes a request on to the process of a task, and sees to it that there is an answer.

A worker reads its pipe between tasks alone. So the request lies in a file of the node's folder that has the process's
id in its name, and a signal tells the process of it. The process removes the file when it begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ..wire import messages as wire
from . import stack_file
from .profile_requests import SIGNAL, Asked, request_file
from .stack_reader import ProcessHandle, UnderWay, handles

BEGIN_S = 10.0  # for a task to come back to Python code: the signal is handled there
WRITE_S = 60.0  # for its trace to be written when its time is over
LOOK_S = 0.1
NOT_BEGUN = (
    f"it has not begun within {BEGIN_S:g} s: the task's process has run no Python code in its main thread meanwhile; "
    "its stacks show what it is at"
)


class ProfileRelay:
    """``under_way``: what runs now. ``folder``: the node's private one."""

    def __init__(
        self, under_way: Callable[[], Sequence[UnderWay]], send: Callable[[wire.Message], object], folder: Path
    ) -> None:
        self._under_way, self._send, self._folder = under_way, send, folder
        self._waiting: dict[tuple[int, str], asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def asked(self, message: wire.Profile) -> None:
        key = message.attempt, message.profile
        if key in self._waiting:
            return
        self._waiting[key] = asyncio.Event()
        task = asyncio.get_running_loop().create_task(self._answer(message, self._waiting[key]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def answered(self, message: wire.Profiled) -> None:
        """Handle what a task's process says of itself, which is the client's answer then."""
        if (answered := self._waiting.get((message.attempt, message.profile))) is not None:
            answered.set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, asked: wire.Profile, answered: asyncio.Event) -> None:
        try:
            why = await self._why_none(asked, answered)
        except (OSError, ValueError):
            why = "its process has ended"
        finally:
            del self._waiting[asked.attempt, asked.profile]
        if why:
            self._send(wire.Profiled(asked.attempt, asked.profile, "", why))

    async def _why_none(self, asked: wire.Profile, answered: asyncio.Event) -> str:
        """Return why there is no answer of the task's own; empty: there is one."""
        memories = [each.memory for each in self._under_way() if each.attempt == asked.attempt]
        if not memories:
            return "it waits for a slot of the node, or has ended"
        pid, _ = stack_file.read_head(memories[0].fd)
        if not pid:
            return "its process has not begun"
        file = request_file(self._folder, pid, asked.attempt)
        file.write_bytes(Asked(*asked).written())
        try:
            with ProcessHandle(pid) as handle:
                if not handles(pid, SIGNAL):
                    return "its process does not handle the signal by which it is asked, as one that is about to end"
                handle.signal_thread(pid, SIGNAL)
            return await self._wait(asked, answered, file)
        finally:
            file.unlink(missing_ok=True)

    async def _wait(self, asked: wire.Profile, answered: asyncio.Event, file: Path) -> str:
        now = asyncio.get_running_loop().time
        began, last = now(), False
        while not answered.is_set():
            if last:
                return "its process has ended"
            last = all(each.attempt != asked.attempt for each in self._under_way())  # its answer comes before its end
            if now() > began + BEGIN_S and file.exists():  # noqa: ASYNC240  of a disk of this machine
                return NOT_BEGUN
            if now() > began + BEGIN_S + asked.seconds + WRITE_S:
                return f"it is not over {WRITE_S:g} s after its time"
            with suppress(TimeoutError):
                await asyncio.wait_for(answered.wait(), LOOK_S)
        return ""
