"""Samples of this machine's use (processors, memory, ...), computed from the kernel's figures at two times. No I/O.

The figures are documented in proc_stat(5), proc_meminfo(5), proc_pid_net(5) (for ``net/dev``), cgroups(7), and the
kernel's cgroup-v2.rst.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import get_args

from ...lazy_named_tuple import NamedTuple
from ..wire.messages import GpuSample, Sampled
from ..wire.ranges import Number, Size

_IDLE, _IO_WAIT, _STEAL = 3, 4, 7  # indexes of columns in a processor's line of /proc/stat
_COUNTED = 8  # the first 8 columns add up to the total time; the later columns are parts of these
_US = 1e6
# the largest values that the fields of a message may have
_MOST_MEMORY, _MOST = (int(get_args(kind)[1].most) for kind in (Size, Number))


class CpuTicks(NamedTuple):
    """The busy and all clock ticks of some processors, added up, since the start of the machine."""

    busy: int
    all: int


class Memory(NamedTuple):
    used_bytes: int
    total_bytes: int


class Traffic(NamedTuple):
    """The number of bytes that a machine has received and sent over its network since its start."""

    received: int
    sent: int


class Readings(NamedTuple):
    """The figures of a machine at one time.

    ``at``: the time, in seconds of any clock. ``busy_s``: processor time used since the start. ``ticks``: busy and idle
    clock ticks of the processors since the start. ``cpus``: number of processors that may be used.
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
    """Return the machine's use between two readings; None if a clock has not advanced between them.

    Values are limited to those that a message may contain. (Network file systems may report 16 EiB, and containers more
    free than total memory: the client would reject such a message, and give up the node.)
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
        *_bounded(  # not below 0, although an interface may be removed or reset
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
    """Return the ticks of these processors, from the text of /proc/stat.

    Raises:
        ValueError: none of the processors is in the text.
    """
    busy = total = 0
    has_cpu = False
    for line in stat.splitlines():
        if not line.startswith("cpu"):
            break  # the lines about processors come first
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
    """Return the used and total memory of a machine. Memory that the kernel frees when needed does not count as used.

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
    """Return the used memory of a cgroup, and its limit. File cache that the kernel drops when needed does not count.

    ``current`` and ``stat``: the texts of ``memory.current`` and ``memory.stat``.
    """
    dropped = next((int(line.split()[1]) for line in stat.splitlines() if line.startswith("inactive_file ")), 0)
    return Memory(max(0, int(current) - dropped), limit_bytes)


def traffic(net_dev: str, interfaces: Collection[str]) -> Traffic:
    """Return the total traffic of these network interfaces, from the text of /proc/net/dev."""
    received = sent = 0
    for line in net_dev.splitlines():
        name, colon, rest = line.partition(":")
        if colon and name.strip() in interfaces:
            columns = rest.split()
            received += int(columns[0])
            sent += int(columns[8])
    return Traffic(received, sent)


def interface_names(net_dev: str) -> frozenset[str]:
    """Return the names of the network interfaces, without the loopback, from the text of /proc/net/dev."""
    names = (line.partition(":") for line in net_dev.splitlines())
    return frozenset(name.strip() for name, colon, _ in names if colon) - {"lo"}


def group_path(cgroup: str) -> str | None:
    """Return the path of a process's cgroup (v2), from the text of /proc/self/cgroup; None without a cgroup."""
    lines = (line for line in cgroup.splitlines() if line.startswith("0::/"))
    return next((line[len("0::/") :].strip("/") for line in lines), None)


def group_limit(text: str) -> int | None:
    """Return the number in the text of a limit's file such as ``memory.max``; None if the text is "max": no limit."""
    return int(text) if text.strip().isdigit() else None


def group_cpus(cpu_max: str) -> float | None:
    """Return how many processors a cgroup may use, from the text of ``cpu.max``; None without a limit."""
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
