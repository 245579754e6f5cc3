"""The relay of profile requests from the client to the process of a task. Every request gets an answer.

A worker reads its pipe only between tasks. Therefore the request is a file in the node's folder, whose name contains
the pid of the task's process, and a signal notifies the process. The process removes the file when it begins the
profile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ..wire import messages as wire
from . import stack_file
from .profile_requests import SIGNAL, ProfileRequest, request_file
from .stack_reader import ProcessHandle, UnderWay, handles

BEGIN_S = 10.0  # time limit for a profile's begin: Python handles the signal when C code has returned
WRITE_S = 60.0  # time limit for writing the trace after the profile's end
LOOK_S = 0.1
NOT_BEGUN = (
    f"it has not begun within {BEGIN_S:g} s: the task's process has run no Python code in its main thread meanwhile; "
    "its stacks show what it is at"
)


class ProfileRelay:
    """The relay of profile requests from the client to tasks' processes.

    Args:
        under_way: returns the running attempts of this node.
        send: sends a message to the client.
        folder: the node's private folder.
    """

    def __init__(
        self, under_way: Callable[[], Sequence[UnderWay]], send: Callable[[wire.Message], object], folder: Path
    ) -> None:
        self._under_way, self._send, self._folder = under_way, send, folder
        self._waiting: dict[tuple[int, str], asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, message: wire.Profile) -> None:
        key = message.attempt, message.profile
        if key in self._waiting:
            return
        self._waiting[key] = asyncio.Event()
        task = asyncio.get_running_loop().create_task(self._answer(message, self._waiting[key]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def answered(self, message: wire.Profiled) -> None:
        """Record that a task's process has answered. (The worker pool forwards the answer to the client.)"""
        if (answered := self._waiting.get((message.attempt, message.profile))) is not None:
            answered.set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, request: wire.Profile, answered: asyncio.Event) -> None:
        try:
            why = await self._why_none(request, answered)
        except (OSError, ValueError):
            why = "its process has ended"
        finally:
            del self._waiting[request.attempt, request.profile]
        if why:
            self._send(wire.Profiled(request.attempt, request.profile, "", why))

    async def _why_none(self, request: wire.Profile, answered: asyncio.Event) -> str:
        """Send a request to the task's process, and wait; return why there is no answer, "" if there is one."""
        memories = [each.memory for each in self._under_way() if each.attempt == request.attempt]
        if not memories:
            return "it waits for a slot of the node, or has ended"
        pid, _ = stack_file.read_head(memories[0].fd)
        if not pid:
            return "its process has not begun"
        file = request_file(self._folder, pid, request.attempt)
        file.write_bytes(ProfileRequest(*request).written())
        try:
            with ProcessHandle(pid) as handle:
                if not handles(pid, SIGNAL):
                    return "its process does not handle the signal by which it is asked, as one that is about to end"
                handle.signal_thread(pid, SIGNAL)
            return await self._wait(request, answered, file)
        finally:
            file.unlink(missing_ok=True)

    async def _wait(self, request: wire.Profile, answered: asyncio.Event, file: Path) -> str:
        now = asyncio.get_running_loop().time
        began, last = now(), False
        while not answered.is_set():
            if last:
                return "its process has ended"
            # at the attempt's end, check once more: the answer has arrived before the end
            last = all(each.attempt != request.attempt for each in self._under_way())
            if now() > began + BEGIN_S and file.exists():  # noqa: ASYNC240  the file is on a local disk
                return NOT_BEGUN
            if now() > began + BEGIN_S + request.seconds + WRITE_S:
                return f"it is not over {WRITE_S:g} s after its time"
            with suppress(TimeoutError):
                await asyncio.wait_for(answered.wait(), LOOK_S)
        return ""
