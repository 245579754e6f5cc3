"""The worker's side of profiles: it begins a profile when the node or a task requests one, and sends the result.

`task_profile` makes the profile; it is imported only when a profile begins.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from ..wire import log_records
from ..wire.messages import Message, Profiled
from . import context
from .context import TaskContext
from .log_sender import LogSender
from .signal_requests import PROFILE_SIGNAL, ProfileRequest, request_files

if TYPE_CHECKING:
    from .task_profile import Left, TaskProfile


class Profiling:
    """The starter of profiles in a worker process; only one profile runs at a time.

    Args:
        folder: the node's private folder, with the request files.
        tasks: attempt -> (running task, its thread).
        send: sends a message with descriptors to the executor server.
        log: sends the finished profile, as the blob of a log record.
        lock: acquired while a message is sent.
    """

    def __init__(
        self,
        folder: str,
        *,
        tasks: dict[int, tuple[TaskContext, int]],
        send: Callable[[Message, list[int]], None],
        log: LogSender,
        lock: AbstractContextManager[object],
    ) -> None:
        """Install the handler of the signal that announces requests. Call this in the main thread."""
        self._folder, self._tasks = Path(folder), tasks
        self._send, self._log, self._lock = send, log, lock
        self._pid = os.getpid()
        # acquired while a profile begins and runs: a signal with another request may arrive at any moment
        self._owned = Lock()
        self._number = 0
        self._blocks: dict[TaskContext, int] = {}
        signal.signal(PROFILE_SIGNAL, self._on_signal)
        context.set_profiling(self)

    def _on_signal(self, *_: object) -> None:
        """Handle the requests. This signal handler interrupts the main thread's Python code, and raises nothing."""
        with suppress(Exception):
            if os.getpid() != self._pid:  # this process is a fork made by the task
                return
            for file in request_files(self._folder, self._pid):
                request = ProfileRequest.read(file.read_bytes())
                file.unlink()
                self._begin_or_say(request)

    def _begin_or_say(self, request: ProfileRequest) -> None:
        task, thread = self._tasks.get(request.attempt, (None, 0))
        if task is None:
            why = "it has ended"
        elif not self._log.wanted:
            why = "its pool keeps no record, where a profile would be"
        else:
            try:
                why = "" if self.begin(request, task, thread) else "another profile of its process is under way"
            except Exception as error:  # noqa: BLE001  for example, no thread can be started
                why = f"it did not begin: {error}"
        if why:
            self.say(Profiled(request.attempt, request.name, "", why))

    def begin(self, request: ProfileRequest, task: TaskContext, thread: int) -> TaskProfile | None:
        """Begin a profile of a task that runs in ``thread``; return None if another profile is running."""
        if os.getpid() != self._pid or not self._owned.acquire(blocking=False):
            return None
        try:
            self._number += 1
            scratch = self._folder / f"profile-{self._pid}-{self._number}.json"
            from .task_profile import TaskProfile

            profile = TaskProfile(request, thread, scratch, self._over)
            task.closing.append(profile.task_ended)
            profile.begin()
        except BaseException:
            self._owned.release()
            raise
        return profile

    def next_block(self, task: TaskContext) -> int:
        """Return the number of the profile that the task's own code begins next (1, 2, ...).

        Ranks that run the same code get the same numbers.
        """
        self._blocks = {task: self._blocks.get(task, 0) + 1}
        return self._blocks[task]

    def say(self, message: Profiled) -> None:
        with self._lock, suppress(OSError):
            self._send(message, [])

    def _over(self, profile: TaskProfile, left: Left) -> None:
        request, artifact, problem = profile.request, "", left.problem
        if left.fd >= 0:
            artifact = f"profile-{request.name}-{request.attempt}.gz"
            record = log_records.artifact(time.time(), artifact, left.size_bytes, left.sha256)
            try:
                self._log.put_blob(request.attempt, record, left.fd)
            except OSError as error:
                artifact, problem = "", f"it could not be sent: {error.strerror}"
        self._owned.release()
        self.say(Profiled(request.attempt, request.name, artifact, problem))
