"""The NVIDIA GPUs of a computer, as ``nvidia-smi`` lists them. No I/O."""

from __future__ import annotations

from ...lazy_dataclass import dataclass

QUERY = ("--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True)
class Device:
    index: int  # the GPU's number; GPUs are numbered in the order of the PCI bus
    uuid: str
    name: str  # the driver's name without the maker: "H200"
    memory_gb: float


def parse(table: str) -> list[Device]:
    """Parse the output of ``nvidia-smi`` for `QUERY`, with one GPU per line: ``0, GPU-5f3c..., NVIDIA H200, 143771``.

    The memory is in MiB. ``[N/A]``, for a GPU that shares the computer's memory, becomes 0.
    """
    devices = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[0].isdigit():  # other lines are warnings
            index, uuid, name, mebibytes = cells
            memory_gb = round(int(mebibytes) / 1024, 1) if mebibytes.isdigit() else 0.0
            devices.append(Device(int(index), uuid, name.removeprefix("NVIDIA "), memory_gb))
    return devices
