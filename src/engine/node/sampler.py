"""Periodic samples of the use of this machine's processors, memory, disk, network and GPUs, for the client.

A thread reads the figures, because the disk and a GPU's driver may hang, which must not stop the executor. A sample
covers the time since the last sample that was sent. While the client is away no sample is sent; the first sample after
that covers the whole time.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ..wire.messages import Sampled
from . import samples
from .nvml import Gpus
from .samples import Memory, Readings

FIRST_S = 1.0  # delay of the first sample, because a starting node needs its processors for other work
LEAST_S = 0.1  # shortest interval between two samples
MOST_GPUS = 64
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Machine:
    """The reader of the figures of this machine, or of the container of this process if it has limits.

    Args:
        work: a folder on the disk whose use is measured.
        gpus: the reader of the GPUs' figures; None if the node has no GPUs.
        proc: the mount point of procfs.
        groups: the mount point of cgroups.
        interfaces: the folder with the network interfaces.
    """

    def __init__(
        self,
        work: Path,
        gpus: Gpus | None = None,
        *,
        proc: Path = Path("/proc"),
        groups: Path = Path("/sys/fs/cgroup"),
        interfaces: Path = Path("/sys/class/net"),
    ) -> None:
        self._work, self._gpus, self._proc, self._interfaces = work, gpus, proc, interfaces
        self._cpus = os.sched_getaffinity(0)
        self._memory_group, self._memory_limit = _tightest(_groups(proc, groups), "memory.max", samples.group_limit)
        self._cpu_group, self._quota = _tightest(_groups(proc, groups), "cpu.max", samples.group_cpus)
        self._names: frozenset[str] = frozenset()  # all network interfaces, when `_counted` was computed
        self._counted: frozenset[str] = frozenset()

    def read(self) -> Readings:
        """Return the current figures.

        Raises:
            OSError, ValueError: the kernel does not report a needed figure.
        """
        ticks = samples.cpu_ticks((self._proc / "stat").read_text(), self._cpus)
        busy_s, cpus = ticks.busy / _TICKS_PER_S, float(len(self._cpus))
        if self._cpu_group is not None and self._quota is not None and self._quota < cpus:
            busy_s, cpus = samples.group_busy_s((self._cpu_group / "cpu.stat").read_text()), self._quota
        at = time.monotonic()
        net_dev = (self._proc / "net/dev").read_text()
        traffic = samples.traffic(net_dev, self._counted_interfaces(net_dev))
        gpus = () if self._gpus is None else self._gpus.read()[:MOST_GPUS]
        return Readings(at, busy_s, ticks.all, cpus, self._memory(), self._disk(), traffic, gpus)

    def _memory(self) -> Memory:
        whole = samples.host_memory((self._proc / "meminfo").read_text())
        group, limit = self._memory_group, self._memory_limit
        if group is None or limit is None or limit >= whole.total_bytes:
            return whole
        current, stat = ((group / name).read_text() for name in ("memory.current", "memory.stat"))
        return samples.group_memory(current, stat, int(limit))

    def _disk(self) -> Memory:
        disk = os.statvfs(self._work)
        return Memory((disk.f_blocks - disk.f_bfree) * disk.f_frsize, disk.f_blocks * disk.f_frsize)

    def _counted_interfaces(self, net_dev: str) -> frozenset[str]:
        """Return the network interfaces that are hardware; if there are none, as in a container, return all.

        The same bytes pass through a hardware interface and a bridge or tunnel, and must not count twice.
        """
        names = samples.interface_names(net_dev)
        if names != self._names:
            hardware = frozenset(name for name in names if (self._interfaces / name / "device").exists())
            self._names, self._counted = names, hardware or names
        return self._counted


def _groups(proc: Path, groups: Path) -> list[Path]:
    """Return the folders of this process's cgroup (v2) and of its ancestors; [] if the process has no cgroup."""
    try:
        path = samples.group_path((proc / "self/cgroup").read_text())
    except OSError:
        return []
    if path is None or ".." in path.split("/"):  # the cgroup is above the mounted part of the hierarchy
        return [] if path is None else [groups]
    own = groups / path
    return [own, *(each for each in own.parents if each.is_relative_to(groups))]


def _tightest(groups: list[Path], name: str, limit: Callable[[str], float | None]) -> tuple[Path | None, float | None]:
    """Return the cgroup with the lowest limit, and this limit; (None, None) if no group has a limit.

    Args:
        groups: folders of cgroups.
        name: the limit's file in these folders, such as "memory.max".
        limit: returns the limit in the text of this file, None if there is none.
    """
    limits: list[tuple[float, Path]] = []
    for group in groups:
        try:
            value = limit((group / name).read_text())
        except (OSError, ValueError):  # this group has no such file, as the root group
            continue
        if value is not None:
            limits.append((value, group))
    if not limits:
        return None, None
    least, group = min(limits)
    return group, least


class Sampler:
    """A thread that reads the machine's figures every ``every_s`` seconds, and sends samples by the event loop.

    ``send`` is called in the event loop; it returns False if the sample was not sent.
    """

    def __init__(
        self,
        machine: Callable[[], Machine],
        send: Callable[[Sampled], bool],
        every_s: float,
        *,
        first_s: float = FIRST_S,
    ) -> None:
        """Create the sampler; `start` starts its thread. ``machine`` is called in the thread."""
        self._loop = asyncio.get_running_loop()
        self._machine, self._send, self._every_s, self._first_s = machine, send, every_s, first_s
        self._before: Readings | None = None
        self._ended = threading.Event()
        self._logged = False
        self._thread = threading.Thread(target=self._run, name="outrider-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop sending samples, without waiting for the thread, which may hang in a driver."""
        self._ended.set()

    def _took(self, now: Readings) -> None:
        if self._before is None:
            self._before = now
            return
        sampled = samples.between(self._before, now)
        if sampled is not None and not self._ended.is_set() and self._send(sampled):
            self._before = now

    # --- in the sampler's thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._ended.wait(min(self._first_s, self._every_s)):
            return
        machine = self._machine()
        while True:
            try:
                readings = machine.read()
            except Exception as error:  # noqa: BLE001  the node continues after any error of kernel or driver
                self._log(error)
            else:
                try:
                    self._loop.call_soon_threadsafe(self._took, readings)
                except RuntimeError:  # the event loop is closed
                    return
            if self._ended.wait(self._every_s):
                return

    def _log(self, error: Exception) -> None:
        if not self._logged:
            self._logged = True
            print(f"this machine's use cannot be read: {error!r}", file=sys.stderr, flush=True)
