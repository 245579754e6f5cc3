"""This computer's GPUs, and which node sees which."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from ..base import AcceleratorRequest
from ..errors import NoCapacity


@dataclass(frozen=True, slots=True)
class Device:
    index: int
    name: str  # as the driver says it: "NVIDIA H200"
    memory_gb: float


@dataclass(frozen=True, slots=True)
class Share:
    """What one node sees."""

    devices: tuple[Device, ...]
    hide_others: bool

    @property
    def environment(self) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": ",".join(str(d.index) for d in self.devices)} if self.hide_others else {}

    @property
    def accelerators(self) -> list[tuple[str, float]]:
        return [(d.name, d.memory_gb) for d in self.devices]


async def find_devices() -> list[Device]:
    """NVIDIA's own tool is asked only where its driver is loaded: it takes a second."""
    if not any(Path("/dev").glob("nvidia[0-9]*")) or not (tool := shutil.which("nvidia-smi")):
        return []
    query = [tool, "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]
    with anyio.move_on_after(20):
        done = await anyio.run_process(query, check=False, stderr=subprocess.DEVNULL)
        return parse(done.stdout.decode()) if done.returncode == 0 else []
    return []


def parse(table: str) -> list[Device]:
    """``0, NVIDIA H200, 143771`` (memory in MiB), one line a device."""
    devices = []
    for line in table.splitlines():
        index, name, memory = (cell.strip() for cell in line.split(","))
        devices.append(Device(int(index), name.removeprefix("NVIDIA "), round(float(memory) / 1024, 1)))
    return devices


def divide(devices: Sequence[Device], nodes: int, wanted: AcceleratorRequest | None) -> list[Share]:
    """One share for each of ``nodes`` nodes.

    Raises:
        NoCapacity: the request asks for more than there is.
    """
    if wanted is None:
        each = len(devices) // nodes
        return [Share(tuple(devices[n * each : (n + 1) * each]), hide_others=bool(devices)) for n in range(nodes)]
    fitting = [d for d in devices if wanted.name.lower() in d.name.lower() and d.memory_gb >= wanted.memory_gb]
    if len(fitting) < wanted.count * nodes:
        has = ", ".join(d.name for d in devices) or "no accelerator"
        raise NoCapacity(
            f"{nodes} local nodes with {wanted.count} {wanted.name} each need {wanted.count * nodes}; this computer has {has}"
        )
    return [Share(tuple(fitting[n * wanted.count : (n + 1) * wanted.count]), hide_others=True) for n in range(nodes)]
