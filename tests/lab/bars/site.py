"""A lab's hosts as a pool's provider, and what can be seen of both while something is broken."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from outrider import SSH, Pool, events

if TYPE_CHECKING:
    from netlab import Host, Lab

# What tests allow beyond a bar: CI's two cores are the hosts', the client's and pytest's, and one of them may stand
# still for some seconds. `benchmarks.lab` judges.
BUSY, STANDS_S = 2.0, 5.0

Kind = TypeVar("Kind", bound=events.Event)


def provider(lab: Lab, hosts: Sequence[Host], **options: Any) -> SSH:
    """These hosts, with the lab's key and their host keys."""
    known = lab.key.with_name("known_hosts")
    known.write_text(lab.known_hosts)
    places = [f"{host.address}:{host.port}" for host in hosts]
    return SSH(places, **{"user": "root", "key": lab.key, "known_hosts": known, **options})


def busy(bar_s: float) -> float:
    """What a test allows for what is to take ``bar_s`` at most."""
    return BUSY * bar_s + STANDS_S


class Diary:
    """A pool's events as they come."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []
        self._more = asyncio.Event()

    def all(self, kind: type[Kind], *, since: int = 0) -> list[Kind]:
        return [event for event in self.events[since:] if isinstance(event, kind)]

    async def first(
        self,
        kind: type[Kind],
        within_s: float,
        *,
        where: Callable[[Kind], bool] = lambda _: True,
        since: int = 0,
    ) -> Kind:
        """The first such event from the ``since``-th on, come already or not.

        Raises:
            AssertionError: there was none in time; with what there was.
        """
        try:
            async with asyncio.timeout(within_s):
                while True:
                    for event in self.all(kind, since=since):
                        if where(event):
                            return event
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            story = "".join(f"\n  {event}" for event in self.events[since:])
            raise AssertionError(f"no such {kind.__name__} within {within_s:g} s:{story}") from None

    async def started(self, tasks: int, *, since: int, within_s: float = 120.0) -> None:
        """So many have begun to run. A broadcast's ranks are not among them."""
        await until(
            lambda: len(self.all(events.TaskStarted, since=since)) >= tasks, within_s, what=f"{tasks} tasks run"
        )

    def write(self, event: events.Event) -> None:
        self.events.append(event)
        self._more.set()


@asynccontextmanager
async def watched(pool: Pool) -> AsyncIterator[Diary]:
    diary = Diary()

    async def collect() -> None:
        async for event in pool.events():
            diary.write(event)

    collecting = asyncio.create_task(collect())
    await asyncio.sleep(0)  # it listens from here on
    try:
        yield diary
    finally:
        collecting.cancel()


async def until(condition: Callable[[], object], within_s: float, *, what: str = "") -> None:
    """
    Raises:
        AssertionError: it did not hold in time.
    """
    try:
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:g} s: {what}") from None


async def said(process: asyncio.subprocess.Process, pattern: bytes, *, within_s: float = 300.0) -> re.Match[bytes]:
    """Wait for the next line that a process prints with this in it.

    Raises:
        AssertionError: it ended without.
    """
    assert process.stdout is not None
    async with asyncio.timeout(within_s):
        async for line in process.stdout:
            if found := re.search(pattern, line):
                return found
    raise AssertionError(f"it ended without saying {pattern!r}")


def states(pool: Pool) -> list[str]:
    return sorted(node.state for node in pool.snapshot().nodes)


def named(hosts: Sequence[Host], name: str) -> Host:
    return next(host for host in hosts if host.name == name)


def written(hosts: Sequence[Host], file: str) -> list[str]:
    """The lines of a file in root's home on all of them."""
    paths = [host.path(f"/root/{file}") for host in hosts]
    return [line for path in paths if path.exists() for line in path.read_text().splitlines()]


def running(host: Host) -> list[int]:
    """The processes there that are not sshd's: the executor's, its tasks', and what these have started."""
    return [pid for pid, line in host.processes().items() if not Path(line[0].rstrip(":")).name.startswith("sshd")]


def daemon(host: Host) -> int:
    """The executor's own process: the others have been forked by it."""
    found = [pid for pid, line in host.processes().items() if "daemon" in line]
    return next(pid for pid in found if _parent(pid) not in found)  # not the lowest: numbers begin again at 32,768


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return pid  # it has ended meanwhile
