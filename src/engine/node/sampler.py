"""Periodic samples of the use of this machine's processors, memory, disk, network and GPUs, for the client.

A thread reads the figures, because the disk and a GPU's driver may hang, which must not stop the executor. A sample
covers the time since the last sample that was sent. While the client is away no sample is sent; the first sample after
that covers the whole time.

`use_between` computes a sample from the kernel's figures at two times, without I/O. The figures are documented in
proc_stat(5), proc_meminfo(5), proc_pid_net(5) (for ``net/dev``), cgroups(7), and the kernel's cgroup-v2.rst.

`Gpus` reads the state of this machine's GPUs from NVIDIA's management library (NVML), which is part of the driver. Its
functions and structures are documented at https://docs.nvidia.com/deploy/nvml-api/. It is no error if a GPU does not
answer (it is left out), or if there is no driver (then no GPU is reported).
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, get_args

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


def use_between(before: Readings, now: Readings) -> Sampled | None:
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


def traffic_of(net_dev: str, interfaces: Collection[str]) -> Traffic:
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


NVML_LIBRARY = "libnvidia-ml.so.1"
NVML_AGAIN_S = 60.0  # delay until the next try to open the library, after a failure
_SUCCESS = 0
_UUID_BYTES = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE in nvml.h
_MOST_WATTS = 1e6


class Gpus:
    """The GPUs of this machine that CUDA_VISIBLE_DEVICES (``visible``; None: all GPUs) selects."""

    def __init__(
        self, visible: str | None = None, *, library: str = NVML_LIBRARY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._visible, self._name, self._clock = visible, library, clock
        self._library: Any = None
        self._handles: list[tuple[int, Any]] = []
        self._next_at = clock()

    def read(self) -> tuple[GpuSample, ...]:
        """Return the current state of each GPU; () without a driver. May take long, if the driver hangs."""
        try:
            if not self._handles and self._clock() >= self._next_at:
                self._next_at = self._clock() + NVML_AGAIN_S
                self._open()
            samples = [self._sample(index, handle) for index, handle in self._handles]
        except Exception:  # noqa: BLE001  for example, the library lacks a function
            self._handles = []
            return ()
        return tuple(sample for sample in samples if sample is not None)

    def _open(self) -> None:
        import ctypes  # imported here because nodes without GPUs do not need it

        if self._library is None:
            try:
                library = ctypes.CDLL(self._name)
            except OSError:
                return
            if library.nvmlInit_v2() != _SUCCESS:
                return
            self._library = library
        count = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _SUCCESS:
            return
        gpus = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == _SUCCESS:
                gpus.append((index, self._uuid(handle), handle))
        self._handles = [(index, handle) for index, _, handle in chosen_gpus(gpus, self._visible)]

    def _uuid(self, handle: Any) -> str:
        import ctypes

        text = ctypes.create_string_buffer(_UUID_BYTES)
        has_uuid = self._library.nvmlDeviceGetUUID(handle, text, _UUID_BYTES) == _SUCCESS
        return text.value.decode(errors="replace") if has_uuid else ""

    def _sample(self, index: int, handle: Any) -> GpuSample | None:
        """Return the state of one GPU; None if the GPU gives no figures. Single missing figures are None or 0."""
        import ctypes

        percent = (ctypes.c_uint * 2)()  # nvmlUtilization_t: percent of time in which processors and memory were busy
        sizes = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
        milliwatts = ctypes.c_uint()
        library = self._library
        knows_use = library.nvmlDeviceGetUtilizationRates(handle, percent) == _SUCCESS
        knows_memory = library.nvmlDeviceGetMemoryInfo(handle, sizes) == _SUCCESS
        knows_power = library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(milliwatts)) == _SUCCESS
        if not knows_use and not knows_memory and not knows_power:
            return None
        return GpuSample(
            index,
            min(1.0, percent[0] / 100) if knows_use else None,
            sizes[2] if knows_memory else 0,
            sizes[0] if knows_memory else 0,
            min(_MOST_WATTS, milliwatts.value / 1000) if knows_power else None,
        )


def chosen_gpus(gpus: list[tuple[int, str, Any]], visible: str | None) -> list[tuple[int, str, Any]]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES selects, up to the first name that does not match exactly one GPU.

    Args:
        gpus: (index, UUID, handle) of each GPU.
        visible: the value of CUDA_VISIBLE_DEVICES, None if unset.
    """
    if visible is None:
        return gpus
    left: list[tuple[int, str, Any]] = []
    for name in (part.strip() for part in visible.split(",")):
        named = [
            each for each in gpus if name == str(each[0]) or (name.startswith("GPU-") and each[1].startswith(name))
        ]
        if len(named) != 1 or named[0] in left:
            break
        left += named
    return left


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
        self._memory_group, self._memory_limit = _tightest(_groups(proc, groups), "memory.max", group_limit)
        self._cpu_group, self._quota = _tightest(_groups(proc, groups), "cpu.max", group_cpus)
        self._names: frozenset[str] = frozenset()  # all network interfaces that existed when `_counted` was computed
        self._counted: frozenset[str] = frozenset()

    def read(self) -> Readings:
        """Return the current figures.

        Raises:
            OSError, ValueError: the kernel does not report a needed figure.
        """
        ticks = cpu_ticks((self._proc / "stat").read_text(), self._cpus)
        busy_s, cpus = ticks.busy / _TICKS_PER_S, float(len(self._cpus))
        if self._cpu_group is not None and self._quota is not None and self._quota < cpus:
            busy_s, cpus = group_busy_s((self._cpu_group / "cpu.stat").read_text()), self._quota
        at = time.monotonic()
        net_dev = (self._proc / "net/dev").read_text()
        traffic = traffic_of(net_dev, self._counted_interfaces(net_dev))
        gpus = () if self._gpus is None else self._gpus.read()[:MOST_GPUS]
        return Readings(at, busy_s, ticks.all, cpus, self._memory(), self._disk(), traffic, gpus)

    def _memory(self) -> Memory:
        whole = host_memory((self._proc / "meminfo").read_text())
        group, limit = self._memory_group, self._memory_limit
        if group is None or limit is None or limit >= whole.total_bytes:
            return whole
        current, stat = ((group / name).read_text() for name in ("memory.current", "memory.stat"))
        return group_memory(current, stat, int(limit))

    def _disk(self) -> Memory:
        disk = os.statvfs(self._work)
        return Memory((disk.f_blocks - disk.f_bfree) * disk.f_frsize, disk.f_blocks * disk.f_frsize)

    def _counted_interfaces(self, net_dev: str) -> frozenset[str]:
        """Return the network interfaces that are hardware; if there are none, as in a container, return all.

        The same bytes pass through a hardware interface and a bridge or tunnel, and must not count twice.
        """
        names = interface_names(net_dev)
        if names != self._names:
            hardware = frozenset(name for name in names if (self._interfaces / name / "device").exists())
            self._names, self._counted = names, hardware or names
        return self._counted


def _groups(proc: Path, groups: Path) -> list[Path]:
    """Return the folders of this process's cgroup (v2) and of its ancestors; [] if the process has no cgroup."""
    try:
        path = group_path((proc / "self/cgroup").read_text())
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
        except (OSError, ValueError):  # this group has no such file: the root group never has one
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
        sampled = use_between(self._before, now)
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
