"""Each fault, from outside of the client: it strikes, and gives back how it is undone."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from outrider.testing.fault_injection import disk, processes
from outrider.testing.fault_injection.processes import Process

from .plan import ORPHAN, Strike
from .who import everything, parts

Undo = Callable[[], None]
NOTICE, NOTICE_S = "preempt", 30.0
DEAD_S = 1.0  # for a process that is killed


class Nobody(Exception):
    """What was to be hit is not there at this time, as a worker between two tasks."""


def strike(fault: Strike, client: int, folder: Path) -> tuple[str, Undo]:
    """Whom it hit, in words, and how to undo it.

    Raises:
        Nobody
    """
    verb, _, part = fault.fault.partition("-")
    if verb == "full":
        return _full(fault, part, client, folder)
    if verb == "notice":
        return _noticed(fault, folder)
    if verb == "limit":
        return _limited(part, _chosen(fault, part, client), fault.number)
    if fault.fault == ORPHAN:
        return _orphaned(_chosen(fault, part, client), _chosen(fault, "watchdog", client))
    victims = _victims(fault, part, client)
    return _killed(part, victims) if verb == "kill" else _stopped(part, victims)


def _victims(fault: Strike, part: str, client: int) -> list[Process]:
    if part == "client":
        return [_client(client)]
    if part == "machine":
        leader = _chosen(fault, "forkserver", client)
        return processes.tree(seen.process for seen in everything().values() if seen.group == leader.pid)
    return [_chosen(fault, part, client)]


def _client(pid: int) -> Process:
    seen = everything().get(pid)
    if seen is None:
        raise Nobody("client")
    return seen.process


def _chosen(fault: Strike, part: str, client: int) -> Process:
    there = parts(client).get(part, [])
    if not there:
        raise Nobody(part)
    return there[int(fault.share * len(there))]


def _killed(part: str, victims: list[Process]) -> tuple[str, Undo]:
    for victim in victims:
        processes.send(victim, signal.SIGKILL)
    return f"{part} {_named(victims)}", lambda: None


def _stopped(part: str, victims: list[Process]) -> tuple[str, Undo]:
    stopped = [victim for victim in victims if processes.send(victim, signal.SIGSTOP)]
    return f"{part} {_named(stopped)}", lambda: processes.resume(stopped)


def _orphaned(supervisor: Process, watchdog: Process) -> tuple[str, Undo]:
    processes.send(watchdog, signal.SIGKILL)
    until = time.monotonic() + DEAD_S
    while processes.lives(watchdog) and time.monotonic() < until:
        pass  # the supervisor ends within a few milliseconds
    return _stopped("supervisor", [supervisor])


def _limited(part: str, victim: Process, number: int) -> tuple[str, Undo]:
    """The soft limit alone: only CAP_SYS_RESOURCE could put a hard one back."""
    try:
        before = resource.prlimit(victim.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(victim.pid, resource.RLIMIT_NOFILE, (min(number, before[1]), before[1]))
    except ProcessLookupError:
        raise Nobody(part) from None

    def undo() -> None:
        if processes.lives(victim):
            resource.prlimit(victim.pid, resource.RLIMIT_NOFILE, before)

    return f"{part} {victim.pid} to {number} descriptors", undo


def _full(fault: Strike, what: str, client: int, folder: Path) -> tuple[str, Undo]:
    stack = ExitStack()
    if what == "checkpoints":
        place, member = folder / "checkpoints", _client(client)
    else:
        place, member = _machine(fault, folder) / "work", _chosen(fault, "supervisor", client)
    if not disk.has_room(place, member):  # it is not a small one of its own, or is full
        raise Nobody(what)
    stack.enter_context(disk.full(place, member))
    return str(place.relative_to(folder)), stack.close


def _noticed(fault: Strike, folder: Path) -> tuple[str, Undo]:
    """Withdrawn when it is undone."""
    machine = _machine(fault, folder)
    try:
        (machine / NOTICE).write_text(f"{NOTICE_S}")
    except FileNotFoundError:
        raise Nobody("machine") from None
    return machine.name, lambda: (machine / NOTICE).unlink(missing_ok=True)


def _machine(fault: Strike, folder: Path) -> Path:
    there = sorted((folder / "state").glob("local/*/n*"))
    if not there:
        raise Nobody("machine")
    return there[int(fault.share * len(there))]


def _named(victims: list[Process]) -> str:
    return ", ".join(str(victim.pid) for victim in victims)
