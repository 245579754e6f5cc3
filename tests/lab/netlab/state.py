"""What a lab owns on this machine, by number and written down, so that the next lab can remove what a dead one left."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from . import cgroups
from .commands import LabError, run
from .proc import Process, this

STATE = Path("/run/outrider-lab")
LABS = 200
GONE_S = 60.0
GONE = ".gone"  # ends the name of a folder whose lab is no more


class State:
    """The folder of one lab; its number is in the name of everything the lab makes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.folder = STATE / str(number)

    @property
    def prefix(self) -> str:
        """Of every link's name (15 characters at most, says the kernel)."""
        return f"orl{self.number}"

    @property
    def group(self) -> str:
        return f"outrider-lab-{self.number}"

    @property
    def disks(self) -> Path:
        return self.folder / "disks"

    def note(self, process: Process) -> None:
        """This process is the lab's."""
        with (self.folder / "processes").open("a") as file:
            file.write(f"{process.pid} {process.started}\n")

    def noted(self) -> list[Process]:
        return _read(self.folder / "processes")

    @property
    def owner(self) -> Process | None:
        """Whoever made the lab, alive or not."""
        found = _read(self.folder / "owner")
        return found[0] if found else None

    def note_groups(self, groups: Iterable[Path]) -> None:
        """Where the lab's control groups are: below those of whoever makes it, which a later lab cannot know."""
        with (self.folder / "groups").open("a") as file:
            file.writelines(f"{group}\n" for group in groups)

    def groups(self) -> list[Path]:
        """Those that exist."""
        path = self.folder / "groups"
        noted = path.read_text().splitlines() if path.exists() else []
        return [group for group in map(Path, dict.fromkeys(noted)) if group.is_dir()]

    def links(self) -> list[str]:
        names = [name for _, name in socket.if_nameindex()]  # /sys has those of the network in which it was mounted
        return [name for name in names if name == self.prefix or name.startswith(f"{self.prefix}-")]

    def mounts(self) -> list[str]:
        """Innermost first."""
        points = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
        return sorted((point for point in points if point.startswith(f"{self.folder}/")), reverse=True)

    def remove(self) -> None:
        """Everything that bears the number, whoever made it; safe to repeat."""
        for group in self.groups():
            cgroups.thaw(group)
        for process in self.noted():
            process.kill()
        for process in self.noted():
            process.wait_gone(GONE_S)
        for link in self.links():
            run(["ip", "link", "del", link], check=False)  # the other end of a pair is gone with the first
        for point in self.mounts():
            run(["umount", "--lazy", point], check=False)
        for group in self.groups():
            cgroups.remove(group)
        self._free()

    def _free(self) -> None:
        """Give the number back in one step: others take a folder without an owner for a dead lab's, and remove what
        bears its number, which a third lab may have by then.
        """
        gone = self.folder.with_name(f"{self.number}-{os.getpid()}{GONE}")
        try:
            self.folder.rename(gone)
        except FileNotFoundError:
            return
        shutil.rmtree(gone, ignore_errors=True)


def claim() -> State:
    """A number that no living lab has; what dead ones left is removed first."""
    with locked():
        remove_dead()
        states = map(State, range(LABS))
        free = next((state for state in states if not state.folder.exists() and not state.links()), None)
        if free is None:
            raise LabError(f"{LABS} labs exist on this machine: see {STATE}")
        free.folder.mkdir(parents=True)
        owner = this()
        (free.folder / "owner").write_text(f"{owner.pid} {owner.started}\n")
        return free


def sweep() -> None:
    """Remove the labs whose makers are dead; every new lab does that first."""
    with locked():
        remove_dead()


def remove_dead() -> None:
    """Remove the labs whose makers are dead. The lock is the caller's."""
    for folder in STATE.iterdir():
        if folder.name.endswith(GONE):
            shutil.rmtree(folder, ignore_errors=True)
        elif folder.name.isdigit():
            state = State(int(folder.name))
            owner = state.owner
            if owner is None or not owner.alive:
                state.remove()


@contextmanager
def locked() -> Iterator[None]:
    """Keep other processes of this machine from claiming a lab's number, and from removing what dead labs left."""
    STATE.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (STATE / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> list[Process]:
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:  # of a lab that is gone by now
        return []
    return [Process(int(pid), int(started)) for pid, started in (line.split() for line in lines)]
