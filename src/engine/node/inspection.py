"""The executor's inspection of running tasks, for the client: their stacks, and their profiles.

Stacks: `StackAnswers` sends a signal to the tasks' processes, which then write their stacks to a memory file.
A real-time signal ends a process that does not handle it. Therefore a process gets the signal only if it handles the
signal and does not block it (as /proc/PID/status shows), and if it has its worker's memory file open under the
descriptor number to which the handler writes. Such a process is the worker, or a fork of it that has not executed
another program. A fork younger than `YOUNG_S` gets no signal, because it may be about to execute another program. The
handler is checked again just before each signal, because an ending process or a task may remove it.
The threads of a process get the signal one after the other, the main thread first. Each thread writes its own frames,
which do not change meanwhile.

Profiles: `ProfileRelay` passes requests on to the process of a task, and answers every request.
A worker reads its pipe only between tasks. Therefore the request is a file in the node's folder, whose name contains
the pid of the task's process, and a signal notifies the process. The process removes the file when it begins the
profile.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ...lazy_dataclass import dataclass
from ...lazy_named_tuple import NamedTuple
from ..wire import messages as wire
from . import process, signal_requests, stack_text
from .signal_requests import PROFILE_SIGNAL, STACK_SIGNAL, ProfileRequest, request_file

WITHIN_S = 1.0  # time limit for a process to write its stacks; a process that waits for a disk may not react
AGAIN_S = 0.1  # delay of a second signal, for a thread worker that got the first one just before it began to wait
YOUNG_S = 0.1
CHILDREN = 32  # maximum number of a task's child processes whose stacks are read
# A thread that has received the signal but writes nothing runs no Python, if it was seen asleep `LOOKS_ASLEEP` times or
# has used `RAN_S` of processor time since. (Without either, it may still wait for a processor, just before its handler.
# The kernel counts processor time in ticks of at most 10 ms.)
LOOKS_ASLEEP, RAN_S = 3, 0.012
LOOKS_AWAKE = 12  # number of checks that replaces RAN_S if the kernel does not report the processor time
LOOKS_LEAST = 8  # minimum number of checks, even after the time limit: this process may have been stopped
READ_BYTES = 1 << 20  # maximum size of a dump: faulthandler writes at most 100 threads of 100 frames each
_BIT = 1 << (STACK_SIGNAL - 1)
_TICKS = os.sysconf("SC_CLK_TCK")
# the number of the system call `tgkill` on this processor: older glibc than 2.30 has no function for it
_TGKILL = {"x86_64": 234, "ppc64le": 250, "s390x": 241}.get(os.uname().machine, 131)
_syscall = ctypes.CDLL(None, use_errno=True).syscall


class StackMemory:
    """The memory file of a worker, as the node uses it: it reads the stacks and the progress of the worker's tasks."""

    def __init__(self, threads: int) -> None:
        self.fd = signal_requests.make_stack_file(threads)
        self._threads = threads
        self._begin = signal_requests.stacks_at(threads)
        self._turn = asyncio.Lock()

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def stepped_at(self, attempt: int) -> float:
        """Return the time of the last step of the attempt, or of an earlier attempt in its process; 0.0 without one."""
        notes = signal_requests.read_notes(self.fd, self._threads)
        noted = [note for note in notes if note.attempt == attempt] if self._threads > 1 else notes
        return noted[0].stepped_ns / 1e9 if noted else 0.0

    async def text(self, attempt: int) -> str:
        """Return the stacks of a running attempt of this worker, or the reason why they cannot be read."""
        async with self._turn:
            try:
                return await self._text(attempt)
            except OSError:
                return "its process has ended"
            except Exception as error:  # noqa: BLE001  for example, the task has truncated the file
                return f"no stack: {type(error).__name__}: {error}"

    async def _text(self, attempt: int) -> str:
        pid, number = signal_requests.read_head(self.fd)
        if not pid:
            return "its process has not begun"
        if self._threads > 1:
            return await self._text_of_thread(pid, number, attempt)
        threads, refused = await self._dump(pid, number)
        if refused:
            return f"no stack: {refused}"
        parts = [stack_text.of_process(threads)]
        children = process.descendants(pid)
        parts += [await self._of_child(child, number) for child in children[:CHILDREN]]
        if len(children) > CHILDREN:
            parts.append(f"... and {len(children) - CHILDREN} more processes")
        return stack_text.bounded("\n".join(filter(None, parts)))

    async def _of_child(self, pid: int, number: int) -> str:
        name = process.name(pid)
        try:
            threads, refused = await self._dump(pid, number, child=True)
        except OSError:
            return ""  # the child has ended
        if refused:
            return f"process {pid} ({name}): no stack: {refused}"
        return f"process {pid} ({name}):\n{stack_text.of_process(threads)}"

    async def _text_of_thread(self, pid: int, number: int, attempt: int) -> str:
        """Return the stack of an attempt in a thread worker, from a dump of all threads of its process."""
        with ProcessHandle(pid) as handle:
            if refused := self._refusal(pid, number, child=False):
                return f"no stack: {refused}"
            blocked = _blocking(pid)
            os.ftruncate(self.fd, self._begin)
            handle.signal()
            answered = await self._has_answered(pid, blocked, handle.signal)
        if not answered:
            return f"no stack: it has not answered within {WITHIN_S:g} s ({_state(pid)})"
        ids = [note.thread for note in signal_requests.read_notes(self.fd, self._threads) if note.attempt == attempt]
        threads = stack_text.parsed(self._written())
        return stack_text.of_thread(threads, ids[0]) if ids else "no stack: it has just begun, or ended"

    async def _dump(self, pid: int, number: int, *, child: bool = False) -> tuple[list[stack_text.Thread], str]:
        """Return (stacks of a process's threads, the main thread first; ""), or ([], why they cannot be read).

        Raises:
            OSError: the process has ended.
        """
        with ProcessHandle(pid) as handle:
            if refused := self._refusal(pid, number, child=child):
                return [], refused
            try:
                return await self._of_threads(handle, time.monotonic() + WITHIN_S)
            except _NotHandledError:
                return [], "its process does not handle the signal any more, as one that is about to end"

    async def _of_threads(self, handle: ProcessHandle, until: float) -> tuple[list[stack_text.Thread], str]:
        pid, late = handle.pid, f"it has not answered within {WITHIN_S:g} s"
        stacks, blocked = list[stack_text.Thread](), _blocking(pid)
        threads = sorted(_threads(pid), key=lambda thread: (thread != pid, thread))
        for thread in threads:
            if thread != pid and time.monotonic() >= until:
                stacks.append(
                    stack_text.without_stack(thread, "it was not asked in time, and neither were those after it")
                )
                break
            if thread in blocked:
                stacks += [stack_text.without_stack(thread, "it blocks signals")] if thread == pid else []
                continue
            dump = await self._of_thread(handle, thread, until)
            if dump is None and thread == pid:
                return [], f"{late} ({_state(pid)})"
            if dump is None:  # the thread may still write later, into the dumps of other threads
                stacks.append(stack_text.without_stack(thread, f"{late}, and those after it were not asked"))
                break
            stacks += stack_text.of_one(thread, dump)
        return stacks, ""

    async def _of_thread(self, handle: ProcessHandle, thread: int, until: float) -> str | None:
        """Signal a thread; return its dump: "" if it runs no Python or has ended, None if it does not write in time.

        Raises:
            OSError: the main thread has ended.
            _NotHandledError: the process of this main thread does not handle the signal any more.
        """
        status = Path(f"/proc/{handle.pid}/task/{thread}/status")
        os.ftruncate(self.fd, self._begin)
        pause, size, silent, ran_s, looks = 0.0002, self._begin, 0.0, -1.0, 0
        try:
            seen = _seen(status)
            if not seen.handles:
                raise _NotHandledError
            if not seen.at_signal:  # otherwise the signal of an earlier request is still pending
                handle.signal_thread(thread)
            while time.monotonic() < until or looks < LOOKS_LEAST:
                looks += 1
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, 0.02)
                seen = _seen(status)
                if seen.at_signal:
                    continue
                before, size = size, os.fstat(self.fd).st_size
                if size > self._begin and size == before:
                    return self._written()
                if size == self._begin and thread != handle.pid:
                    ran_s, before_s = _ran_s(status), ran_s
                    silent += _silence(ran_s - before_s if before_s >= 0 else 0.0, seen, known=ran_s >= 0)
                    if silent > 0.99:
                        return ""
        except (FileNotFoundError, ProcessLookupError, _NotHandledError):
            if thread == handle.pid:
                raise
            return ""
        return None

    def _written(self) -> str:
        raw = os.pread(self.fd, READ_BYTES, self._begin)
        os.ftruncate(self.fd, self._begin)
        return raw.decode("ascii", errors="replace")

    def _refusal(self, pid: int, number: int, *, child: bool) -> str:
        status = _status(Path(f"/proc/{pid}/status"))
        if not _has_signal(status, "SigCgt") or not self._has_file(pid, number):
            return "it is another program than the task's Python" if child else "it has closed its files"
        if child and _age_s(pid) < YOUNG_S:
            return "it has just begun"
        if len(_blocking(pid)) == len(_threads(pid)):
            return "it blocks signals"
        return ""

    def _has_file(self, pid: int, number: int) -> bool:
        try:
            return os.path.samestat(os.stat(f"/proc/{pid}/fd/{number}"), os.fstat(self.fd))  # noqa: PTH116
        except (FileNotFoundError, PermissionError):
            return False

    async def _has_answered(self, pid: int, blocked: frozenset[int], signal_again: Callable[[], None]) -> bool:
        """Wait until the signal's handler has finished; return False if that takes too long.

        Args:
            blocked: the threads that already blocked the signal. (A thread blocks it while it runs the handler.)
            signal_again: sends the signal once more.
        """
        now = time.monotonic()
        deadline, again_at, pause, size, looks = now + WITHIN_S, now + AGAIN_S, 0.001, 0, 0
        while (now := time.monotonic()) < deadline or looks < LOOKS_LEAST:
            looks += 1
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.02)
            before, size = size, os.fstat(self.fd).st_size
            status = _status(Path(f"/proc/{pid}/status"))
            pending = _has_signal(status, "ShdPnd")
            handled = not pending and _blocking(pid) <= blocked
            if handled and size > self._begin and size == before:
                return True
            if handled and size <= self._begin and self._threads > 1 and now >= again_at:
                again_at = now + AGAIN_S
                if _has_signal(status, "SigCgt"):
                    signal_again()
        return False


class ProcessHandle:
    """A handle to send signals to one process, and never to a later process with the same pid."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = -1

    def __enter__(self) -> ProcessHandle:
        try:
            self._fd = os.pidfd_open(self.pid)
        except (AttributeError, OSError) as error:
            if isinstance(error, ProcessLookupError):
                raise  # the process has ended; all other errors mean a kernel without pidfd (before Linux 5.3)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def signal(self, number: int = STACK_SIGNAL) -> None:
        if self._fd >= 0:
            signal.pidfd_send_signal(self._fd, number)
        else:
            os.kill(self.pid, number)

    def signal_thread(self, thread: int, number: int = STACK_SIGNAL) -> None:
        """Send a signal to one thread of the process. Raises ProcessLookupError if either has ended."""
        self.signal(0)  # raises if the process has ended: its pid may then be another process's
        if _syscall(_TGKILL, self.pid, thread, int(number)) < 0:
            raise OSError(errno := ctypes.get_errno(), os.strerror(errno))


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A running attempt, with the memory file of its worker, for stacks."""

    attempt: int
    memory: StackMemory
    began: float  # when the attempt began, by `time.monotonic`


class StackAnswers:
    """The handler of the client's `ShowStacks` requests; an asyncio task answers each.

    ``under_way``: returns the running attempts.
    """

    def __init__(self, under_way: Callable[[], Sequence[UnderWay]], send: Callable[[wire.Message], object]) -> None:
        self._under_way, self._send = under_way, send
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, message: wire.ShowStacks) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: wire.ShowStacks) -> None:
        await asyncio.gather(*(self._answer_of(request, each) for each in self._under_way()))
        self._send(wire.Stacks(request.number, None, "", 0))

    async def _answer_of(self, request: wire.ShowStacks, of: UnderWay) -> None:
        signed_at = of.began
        with suppress(OSError):
            signed_at = max(signed_at, of.memory.stepped_at(of.attempt))
        quiet_us = max(0, int((time.monotonic() - signed_at) * 1e6))
        text = "" if quiet_us < request.quiet_us else await of.memory.text(of.attempt)
        self._send(wire.Stacks(request.number, of.attempt, stack_text.bounded(text), quiet_us))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _NotHandledError(Exception):
    """Raised if a process does not handle the signal any more, so that the signal would end it."""


class _Seen(NamedTuple):
    """The state of a thread at the time of a check."""

    handles: bool  # whether the process handles the signal
    at_signal: bool  # whether the thread has the signal pending, or runs the handler
    asleep: bool  # whether the thread sleeps (not in a page fault, which may occur at a handler's begin)


def _silence(ran_s: float, seen: _Seen, *, known: bool) -> float:
    """Return the weight of one check in which a thread wrote no stacks after the signal.

    When the weights of a thread's checks add up to 1, the thread is assumed to run no Python.

    Args:
        ran_s: processor time of the thread since the last check.
        seen: the thread's state.
        known: whether the kernel reports the processor time.
    """
    if seen.asleep:
        return 1 / LOOKS_ASLEEP
    return ran_s / RAN_S if known else 1 / LOOKS_AWAKE


def _ran_s(status: Path) -> float:
    """Return the processor time of a thread in seconds; -1.0 if the kernel does not report it (or reports 0)."""
    try:
        return int(status.with_name("schedstat").read_text().split()[0]) / 1e9 or -1.0
    except (OSError, ValueError, IndexError):
        return -1.0


def _seen(status: Path) -> _Seen:
    fields = _status(status)
    at_signal = _has_signal(fields, "SigPnd") or _has_signal(fields, "SigBlk")
    return _Seen(_has_signal(fields, "SigCgt"), at_signal, not fields.get("State", "R").startswith(("R", "D")))


def handles(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal. Raises OSError if the process has ended."""
    return bool(int(_status(Path(f"/proc/{pid}/status")).get("SigCgt", "0"), 16) & 1 << (number - 1))


def _has_signal(status: dict[str, str], field: str) -> bool:
    return bool(int(status.get(field, "0"), 16) & _BIT)


def _threads(pid: int) -> list[int]:
    return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208  names


def _blocking(pid: int) -> frozenset[int]:
    """Return the threads of a process that block the signal: permanently, or while they run its handler."""
    blocking: set[int] = set()
    for thread in _threads(pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
            status = _status(Path(f"/proc/{pid}/task/{thread}/status"))
            if _has_signal(status, "SigBlk"):
                blocking.add(thread)
    return frozenset(blocking)


def _status(path: Path) -> dict[str, str]:
    text = path.read_text(errors="replace")  # the name of a thread may contain any bytes
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def _state(pid: int) -> str:
    with suppress(OSError):
        return f"state {_status(Path(f'/proc/{pid}/status')).get('State', '?')}"
    return "it has ended"


def _age_s(pid: int) -> float:
    began = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]) / _TICKS
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began


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
        pid, _ = signal_requests.read_head(memories[0].fd)
        if not pid:
            return "its process has not begun"
        file = request_file(self._folder, pid, request.attempt)
        file.write_bytes(ProfileRequest(*request).written())
        try:
            with ProcessHandle(pid) as handle:
                if not handles(pid, PROFILE_SIGNAL):
                    return "its process does not handle the signal by which it is asked, as one that is about to end"
                handle.signal_thread(pid, PROFILE_SIGNAL)
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
