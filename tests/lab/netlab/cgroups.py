"""A host's control groups: everything in it can be frozen at once, or held to some memory or cores. Both versions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from .commands import LabError

WITHIN_S = 120.0
_PERIOD_US = 10_000
_LEAST_US = 1_000  # of a core in a period: the kernel takes no less


class Hierarchy(NamedTuple):
    """A mounted tree of groups, where ours go, and whether it is of version 2."""

    top: Path
    unified: bool


class Groups:
    """One host's groups, by name ``<lab>/<host>`` in each hierarchy that is used."""

    def __init__(self, lab: str, host: str) -> None:
        self._freezer = _hierarchy("freezer")
        self._memory = _hierarchy("memory")
        self._cpu = _hierarchy("cpu")
        self._lab, self._host = lab, host
        for hierarchy in self._used:
            _make(hierarchy, lab)
            self._at(hierarchy).mkdir(exist_ok=True)

    @property
    def joining(self) -> list[str]:
        """The files to which a process writes its pid to become one of the host's."""
        return [str(self._at(hierarchy) / "cgroup.procs") for hierarchy in self._used]

    @property
    def tops(self) -> list[Path]:
        """The lab's groups, each of which its hosts' are in."""
        return [hierarchy.top / self._lab for hierarchy in self._used]

    @property
    def _used(self) -> set[Hierarchy]:
        return {each for each in (self._freezer, self._memory, self._cpu) if each is not None}

    @property
    def places(self) -> dict[str, Path]:
        """Where a host finds groups of its own to divide, as a machine does; version 1 alone."""
        named = (("freezer", self._freezer), ("memory", self._memory))
        found = ((name, each) for name, each in named if each is not None and not each.unified)
        return {f"/sys/fs/cgroup/{name}": self._at(hierarchy) for name, hierarchy in found}

    def join(self, pid: int) -> None:
        for path in self.joining:
            Path(path).write_text(str(pid))

    def freeze(self) -> None:
        """Returns when all of it stands still."""
        self._set_frozen(True)

    def thaw(self) -> None:
        self._set_frozen(False)

    def limit_memory(self, size_bytes: int | None) -> None:
        """What the host writes to its disk counts, as on any machine whose disk is memory. None: no limit."""
        if self._memory is None:
            raise LabError("this kernel offers no memory controller")
        group = self._at(self._memory)
        if self._memory.unified:
            (group / "memory.max").write_text("max" if size_bytes is None else str(size_bytes))
        else:
            (group / "memory.limit_in_bytes").write_text(str(-1 if size_bytes is None else size_bytes))

    def limit_cores(self, cores: float | None) -> None:
        """So much of one, or of several, in each hundredth of a second; of less than 0.1, in longer. None: no limit."""
        if self._cpu is None:
            raise LabError("this kernel offers no cpu controller")
        period_us = _PERIOD_US if cores is None else max(_PERIOD_US, round(_LEAST_US / cores))
        group, quota_us = self._at(self._cpu), None if cores is None else round(cores * period_us)
        if self._cpu.unified:
            (group / "cpu.max").write_text(f"{quota_us or 'max'} {period_us}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(period_us))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us or -1))

    def leave(self, pid: int) -> None:
        """To where the lab's own process is."""
        for hierarchy in self._used:
            (hierarchy.top / "cgroup.procs").write_text(str(pid))

    def remove_inner(self) -> None:
        """Those that the host itself has made; no process is left in it."""
        for hierarchy in self._used:
            for child in self._at(hierarchy).iterdir():
                remove(child)

    def remove(self) -> None:
        """Waits for the last process to leave."""
        for hierarchy in self._used:
            remove(self._at(hierarchy))

    def _at(self, hierarchy: Hierarchy) -> Path:
        return hierarchy.top / self._lab / self._host

    def _set_frozen(self, wanted: bool) -> None:
        if self._freezer is None:
            raise LabError("this kernel offers no freezer")
        group = self._at(self._freezer)
        if self._freezer.unified:
            (group / "cgroup.freeze").write_text(str(int(wanted)))
            told, words = group / "cgroup.events", f"frozen {int(wanted)}"
        else:
            words = "FROZEN" if wanted else "THAWED"
            told = group / "freezer.state"
            told.write_text(words)
        until = time.monotonic() + WITHIN_S
        while words not in told.read_text():
            if time.monotonic() > until:
                raise LabError(f"{told} did not become {words!r} within {WITHIN_S:g} s")
            time.sleep(0.001)


def remove(group: Path) -> None:
    """Remove a group, and those in it; processes that are on their way out are waited for."""
    if not group.is_dir():
        return
    for child in group.iterdir():
        if child.is_dir():
            remove(child)
    until = time.monotonic() + WITHIN_S
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.002)
        else:
            return


def thaw(group: Path) -> None:
    """Whatever is in it, so that it can die: a frozen process does not even take SIGKILL under version 1."""
    for path, words in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
        for each in (group, *(child for child in group.iterdir() if child.is_dir())):
            if (each / path).exists():
                (each / path).write_text(words)


def _make(hierarchy: Hierarchy, lab: str) -> None:
    group = hierarchy.top / lab
    group.mkdir(exist_ok=True)
    if hierarchy.unified:
        for each in (hierarchy.top, group):
            offered = (each / "cgroup.controllers").read_text().split()
            for controller in {"cpu", "memory"}.intersection(offered):
                (each / "cgroup.subtree_control").write_text(f"+{controller}")


def _hierarchy(controller: str) -> Hierarchy | None:
    unified = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        dash = fields.index("-")
        kind, options = fields[dash + 1], fields[dash + 3].split(",")
        if kind == "cgroup" and controller in options:
            return Hierarchy(Path(fields[4]) / _own(controller), unified=False)
        if kind == "cgroup2":
            unified = Path(fields[4])
    if unified is None:
        return None
    offered = (unified / "cgroup.controllers").read_text().split()
    return Hierarchy(unified, unified=True) if controller == "freezer" or controller in offered else None


def _own(controller: str) -> str:
    """The group that we are in, below which ours belong: under version 1 a group may hold processes and groups."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    return ""
