"""Which processes are whose: the parts of a local pool by their places in the tree, and all of a life by its mark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outrider.testing.fault_injection.processes import Process

MARK = "OUTRIDER_CHAOS_LIFE"  # in the environment of a client and of all that descends from it
SUPERVISOR = ".watchdog import main"


@dataclass(frozen=True)
class Seen:
    process: Process
    state: str
    parent: int
    group: int

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def command(self) -> str:
        try:
            return Path(f"/proc/{self.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""


def everything() -> dict[int, Seen]:
    found = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and (seen := _seen(int(place.name))) is not None:
            found[seen.pid] = seen
    return found


def marked(mark: str) -> list[Seen]:
    """The living ones of the life ``mark``: also those that have another parent by now."""
    wanted = f"{MARK}={mark}".encode()
    return [seen for seen in everything().values() if seen.state not in "ZX" and wanted in _environment(seen.pid)]


def parts(client: int) -> dict[str, list[Process]]:
    """By `plan.PARTS`, and "child": what tasks have started."""
    table = everything()
    below: dict[int, list[Seen]] = {}
    for seen in table.values():
        if seen.state not in "ZX":
            below.setdefault(seen.parent, []).append(seen)
    found: dict[str, list[Process]] = {}

    def put(part: str, seen: Seen) -> None:
        found.setdefault(part, []).append(seen.process)

    def fork_server(seen: Seen) -> None:
        put("forkserver", seen)
        for worker in _sorted(below.get(seen.pid)):
            forked = SUPERVISOR in worker.command
            put("worker" if forked else "child", worker)
            for child in _sorted(below.get(worker.pid)):
                put("child", child)

    watchdogs = [seen for seen in _sorted(below.get(client)) if SUPERVISOR in seen.command]
    for watchdog in watchdogs:
        put("watchdog", watchdog)
    for supervisor in (supervisor for watchdog in watchdogs for supervisor in _sorted(below.get(watchdog.pid))):
        if SUPERVISOR not in supervisor.command:  # an orphan that the watchdog has adopted
            continue
        put("supervisor", supervisor)
        machines: set[int] = set()  # the groups whose executor has been seen, which is forked before an SSH server
        for seen in _sorted(below.get(supervisor.pid)):
            if seen.group == seen.pid:
                fork_server(seen)
            elif seen.group == supervisor.group:
                put("template", seen)
            else:
                put("server" if seen.group in machines else "executor", seen)
                machines.add(seen.group)
    return found


def _sorted(seen: list[Seen] | None) -> list[Seen]:
    return sorted(seen or [], key=lambda each: each.process.started)


def _seen(pid: int) -> Seen | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return Seen(Process(pid, int(fields[19])), fields[0], int(fields[1]), int(fields[2]))


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
