"""The state of this machine's GPUs, from NVIDIA's management library (NVML), which is part of the driver.

Only the needed functions and structures are declared here, as documented at https://docs.nvidia.com/deploy/nvml-api/. A
GPU that the driver has lost is left out, and without a driver no GPU is reported: neither is an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..wire.messages import GpuSample

LIBRARY = "libnvidia-ml.so.1"
AGAIN_S = 60.0  # delay until the library is opened again after a failure
_SUCCESS = 0
_UUID_BYTES = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE
_MOST_WATTS = 1e6


class Gpus:
    """The GPUs that CUDA_VISIBLE_DEVICES selects (its value is ``visible``; None: all). The library stays open."""

    def __init__(
        self, visible: str | None = None, *, library: str = LIBRARY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._visible, self._name, self._clock = visible, library, clock
        self._library: Any = None
        self._handles: list[tuple[int, Any]] = []
        self._next_at = clock()

    def read(self) -> tuple[GpuSample, ...]:
        """Return the current state of each GPU; empty without a driver. May take long if the driver hangs."""
        try:
            if not self._handles and self._clock() >= self._next_at:
                self._next_at = self._clock() + AGAIN_S
                self._open()
            samples = [self._sample(index, handle) for index, handle in self._handles]
        except Exception:  # noqa: BLE001  for example, the library lacks a function
            self._handles = []
            return ()
        return tuple(sample for sample in samples if sample is not None)

    def _open(self) -> None:
        import ctypes  # imported here: nodes without GPUs do not need it

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
        self._handles = [(index, handle) for index, _, handle in chosen(gpus, self._visible)]

    def _uuid(self, handle: Any) -> str:
        import ctypes

        text = ctypes.create_string_buffer(_UUID_BYTES)
        has_uuid = self._library.nvmlDeviceGetUUID(handle, text, _UUID_BYTES) == _SUCCESS
        return text.value.decode(errors="replace") if has_uuid else ""

    def _sample(self, index: int, handle: Any) -> GpuSample | None:
        """Return the state of one GPU; None if the driver has lost it.

        Figures that the GPU does not support are None or 0.
        """
        import ctypes

        percent = (ctypes.c_uint * 2)()  # nvmlUtilization_t: of the GPU's processors, and of its memory bus
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


def chosen(gpus: list[tuple[int, str, Any]], visible: str | None) -> list[tuple[int, str, Any]]:
    """Return the entries that CUDA_VISIBLE_DEVICES selects, up to the first name that matches no GPU.

    The entries of ``gpus`` are (index, UUID, handle).
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
