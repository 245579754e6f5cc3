"""The state of this machine's GPUs, from NVIDIA's management library (NVML), which is part of the driver.

The functions and structures used here are documented at https://docs.nvidia.com/deploy/nvml-api/. It is no error if a
GPU does not answer (it is left out), or if there is no driver (then no GPU is reported).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..wire.messages import GpuSample

LIBRARY = "libnvidia-ml.so.1"
AGAIN_S = 60.0  # delay until the next try to open the library, after a failure
_SUCCESS = 0
_UUID_BYTES = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE in nvml.h
_MOST_WATTS = 1e6


class Gpus:
    """The GPUs of this machine that CUDA_VISIBLE_DEVICES (``visible``; None: all GPUs) selects."""

    def __init__(
        self, visible: str | None = None, *, library: str = LIBRARY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._visible, self._name, self._clock = visible, library, clock
        self._library: Any = None
        self._handles: list[tuple[int, Any]] = []
        self._next_at = clock()

    def read(self) -> tuple[GpuSample, ...]:
        """Return the current state of each GPU; () without a driver. May take long, if the driver hangs."""
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
        self._handles = [(index, handle) for index, _, handle in chosen(gpus, self._visible)]

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


def chosen(gpus: list[tuple[int, str, Any]], visible: str | None) -> list[tuple[int, str, Any]]:
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
