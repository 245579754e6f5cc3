"""Samples of this machine's use, computed from the kernel's figures at two moments. No I/O.

Sources: proc_stat(5), proc_meminfo(5), proc_pid_net(5) for ``net/dev``, and cgroups(7) with the kernel's cgroup-v2.rst.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import get_args

from ...lazy_named_tuple import NamedTuple
from ..wire.messages import GpuSample, Sampled
from ..wire.ranges import Number, Size

_IDLE, _IO_WAIT, _STEAL = 3, 4, 7  # columns of a line of /proc/stat
_COUNTED = 8  # columns that add up to the total time; later columns are already included in these
_US = 1e6
# limits that messages set for these values
_MOST_MEMORY, _MOST = (int(get_args(kind)[1].most) for kind in (Size, Number))


class CpuTicks(NamedTuple):
    """Clock ticks since the start of the machine, summed over several processors."""

    busy: int
    all: int


class Memory(NamedTuple):
    used_bytes: int
    total_bytes: int


class Traffic(NamedTuple):
    """The bytes that a machine has received and sent over its network since its start."""

    received: int
    sent: int


class Readings(NamedTuple):
    """The state of a machine at one moment.

    ``at``: seconds of any one clock. ``busy_s``: processor time used so far. ``ticks``: all ticks of the processors'
    clocks so far, busy and idle.
    """

    at: float
    busy_s: float
    ticks: int
    cpus: float
    memory: Memory
    disk: Memory
    traffic: Traffic
    gpus: tuple[GpuSample, ...] = ()


def between(before: Readings, now: Readings) -> Sampled | None:
    """Return the use between two readings; None if unknown, because the clocks have not advanced.

    Sizes are limited to the bounds of messages. Network file systems may report 16 EiB, and containers more free than
    total memory: the client would reject such a message as coming from a broken node.
    """
    seconds = now.at - before.at
    capacity_s = seconds * now.cpus
    if seconds <= 0 or now.cpus <= 0 or not capacity_s or now.ticks <= before.ticks:
        return None
    busy = (now.busy_s - before.busy_s) / capacity_s
    return Sampled(
        round(seconds, 3),
        round(min(1.0, max(0.0, busy)), 4),
        now.cpus,
        *_bounded(now.memory, _MOST_MEMORY),
        *_bounded(now.disk, _MOST),
        *_bounded(  # at least 0: an interface may be gone, or its counter reset
            (now.traffic.received - before.traffic.received, now.traffic.sent - before.traffic.sent), _MOST
        ),
        tuple(_bounded_gpu(gpu) for gpu in now.gpus),
    )


def _bounded(sizes: tuple[int, int], most: int) -> tuple[int, int]:
    first, second = sizes
    return min(most, max(0, first)), min(most, max(0, second))


def _bounded_gpu(gpu: GpuSample) -> GpuSample:
    used, total = _bounded((gpu.memory_bytes, gpu.memory_total_bytes), _MOST_MEMORY)
    return gpu._replace(memory_bytes=used, memory_total_bytes=total)


def cpu_ticks(stat: str, cpus: Collection[int]) -> CpuTicks:
    """Return the ticks of these processors from the text of /proc/stat.

    Raises:
        ValueError: the text contains none of the processors.
    """
    busy = total = 0
    has_cpu = False
    for line in stat.splitlines():
        if not line.startswith("cpu"):
            break  # only long lines about interrupts follow
        name, *columns = line.split()
        if not name[3:].isdigit() or int(name[3:]) not in cpus:
            continue
        has_cpu = True
        ticks = [int(each) for each in columns[:_COUNTED]]
        total += sum(ticks)
        busy += sum(ticks) - sum(ticks[at] for at in (_IDLE, _IO_WAIT, _STEAL) if at < len(ticks))
    if not has_cpu:
        raise ValueError("/proc/stat names none of this process's processors")
    return CpuTicks(busy, total)


def host_memory(meminfo: str) -> Memory:
    """Return the memory of a whole machine. Memory that the kernel frees on demand does not count as used.

    Raises:
        ValueError: MemTotal or MemAvailable is missing.
    """
    kib: dict[str, int] = {}
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            kib[name] = int(rest.split()[0])
            if len(kib) == 2:
                return Memory((kib["MemTotal"] - kib["MemAvailable"]) * 1024, kib["MemTotal"] * 1024)
    raise ValueError("/proc/meminfo has no MemTotal or no MemAvailable")


def group_memory(current: str, stat: str, limit_bytes: int) -> Memory:
    """Return the memory of a cgroup with a limit. File cache that the kernel drops on demand does not count as used."""
    dropped = next((int(line.split()[1]) for line in stat.splitlines() if line.startswith("inactive_file ")), 0)
    return Memory(max(0, int(current) - dropped), limit_bytes)


def traffic(net_dev: str, interfaces: Collection[str]) -> Traffic:
    """Return the bytes of these interfaces from the text of /proc/net/dev."""
    received = sent = 0
    for line in net_dev.splitlines():
        name, colon, rest = line.partition(":")
        if colon and name.strip() in interfaces:
            columns = rest.split()
            received += int(columns[0])
            sent += int(columns[8])
    return Traffic(received, sent)


def interface_names(net_dev: str) -> frozenset[str]:
    """Return the interfaces except the loopback, whose traffic stays on the machine."""
    names = (line.partition(":") for line in net_dev.splitlines())
    return frozenset(name.strip() for name, colon, _ in names if colon) - {"lo"}


def group_path(cgroup: str) -> str | None:
    """Return the path of a process's cgroup (v2) from the text of /proc/self/cgroup; None if it is in none."""
    lines = (line for line in cgroup.splitlines() if line.startswith("0::/"))
    return next((line[len("0::/") :].strip("/") for line in lines), None)


def group_limit(text: str) -> int | None:
    """Parse a limit such as that of ``memory.max``; None for "max"."""
    return int(text) if text.strip().isdigit() else None


def group_cpus(cpu_max: str) -> float | None:
    """Return the number of processors that ``cpu.max`` allows; None if it has no limit."""
    quota, _, period = cpu_max.strip().partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def group_busy_s(cpu_stat: str) -> float:
    """Return the processor time in seconds that a cgroup has used, from the text of ``cpu.stat``.

    Raises:
        ValueError: the text has no ``usage_usec``.
    """
    for line in cpu_stat.splitlines():
        if line.startswith("usage_usec "):
            return int(line.split()[1]) / _US
    raise ValueError("cpu.stat has no usage_usec")
