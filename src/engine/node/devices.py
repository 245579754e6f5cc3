"""The GPUs of the host that CUDA would show to a program: those of `nvidia-smi`, limited by CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

_QUERY = ("--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
_PATIENCE_S = 20.0  # time limit for nvidia-smi: without persistence mode the driver takes seconds to initialize


class Query:
    """A running `nvidia-smi`, if the host has an NVIDIA driver. It takes a second, so call `answer` later."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[bytes] | None = None
        if (tool := shutil.which("nvidia-smi")) and any(Path("/dev").glob("nvidia[0-9]*")):
            import subprocess  # imported here to keep it out of the fork server

            self._running = subprocess.Popen(  # noqa: S603
                [tool, *_QUERY], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )

    def answer(self) -> list[tuple[str, float]]:
        """Return (name, memory in GB) of each GPU; an empty list if the tool does not reply in time."""
        if self._running is None:
            return []
        import subprocess

        try:
            table, _ = self._running.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._running.kill()  # do not wait for its end: the kernel cannot kill a process that hangs in the driver
            if self._running.stdout is not None:
                self._running.stdout.close()
            return []
        return parse(table.decode(errors="replace"), os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse(table: str, visible: str | None = None) -> list[tuple[str, float]]:
    """Return (name, memory in GB) of each GPU in lines such as ``0, GPU-5f3c..., NVIDIA H200, 143771``.

    Args:
        table: lines of `nvidia-smi`: index, UUID, name, memory in MiB or ``[N/A]``.
        visible: the value of CUDA_VISIBLE_DEVICES, None if unset.
    """
    gpus: list[tuple[str, str, str, float]] = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[0].isdigit():  # other lines are warnings
            index, uuid, name, mebibytes = cells
            memory_gb = round(int(mebibytes) / 1024, 1) if mebibytes.isdigit() else 0.0
            gpus.append((index, uuid, name.removeprefix("NVIDIA "), memory_gb))
    if visible is not None:
        chosen = []
        for wanted in (part.strip() for part in visible.split(",")):
            named = [
                each for each in gpus if each[0] == wanted or (wanted[:4] == "GPU-" and each[1].startswith(wanted))
            ]
            # CUDA ignores a name that does not match exactly one GPU, and all names after it
            if len(named) != 1 or named[0] in chosen:
                break
            chosen += named
        gpus = chosen
    return [(name, memory_gb) for _, _, name, memory_gb in gpus]
