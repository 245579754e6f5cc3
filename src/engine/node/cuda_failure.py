"""A check whether CUDA has failed permanently in this process, so that the worker's next tasks would fail too.

After some kernel faults, such as an assertion or an access outside of its memory, the driver returns the same error for
every later call of the process, from any library: only another process can use the GPU again (listed in
https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LIBRARY = "libcuda.so.1"
DRIVERS = ("/dev/nvidiactl", "/dev/dxg")  # the second is the device of Windows, under WSL
_SUCCESS = 0
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: the check does not invalidate another thread's capture

# The CUDA manual says that most of these require a new process. 214, 220 and 999 are included because the check below
# cannot cause them itself.
_FOR_GOOD = frozenset(
    [
        214,  # CUDA_ERROR_ECC_UNCORRECTABLE
        220,  # CUDA_ERROR_NVLINK_UNCORRECTABLE
        226,  # CUDA_ERROR_CONTAINED
        700,  # CUDA_ERROR_ILLEGAL_ADDRESS
        702,  # CUDA_ERROR_LAUNCH_TIMEOUT
        710,  # CUDA_ERROR_ASSERT
        714,  # CUDA_ERROR_HARDWARE_STACK_ERROR
        715,  # CUDA_ERROR_ILLEGAL_INSTRUCTION
        716,  # CUDA_ERROR_MISALIGNED_ADDRESS
        717,  # CUDA_ERROR_INVALID_ADDRESS_SPACE
        718,  # CUDA_ERROR_INVALID_PC
        719,  # CUDA_ERROR_LAUNCH_FAILED
        721,  # CUDA_ERROR_TENSOR_MEMORY_LEAK
        999,  # CUDA_ERROR_UNKNOWN
    ]
)


class Cuda:
    """The CUDA library that this process has loaded, if any."""

    def __init__(self, *, library: str = LIBRARY, drivers: tuple[str, ...] = DRIVERS) -> None:
        self._name = library
        self._library: Any = None
        self._exists = any(map(os.path.exists, drivers))

    def has_failed(self) -> bool:
        """Return whether no CUDA call can succeed in this process any more; False if the process does not use CUDA.

        Measured on an H200: 15 us, and 2 us where CUDA is loaded and unused. The check waits for no kernel.
        """
        if not self._exists:
            return False
        try:
            if self._library is None:  # NOLOAD: succeeds only if the process has loaded the library
                self._library = ctypes.CDLL(self._name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            return any(self._answer(device) in _FOR_GOOD for device in self._devices())
        except (OSError, AttributeError):  # not loaded, or an unrelated library of the same name
            return False

    def _devices(self) -> Iterator[int]:
        """Yield the devices on which this process has a primary context, which all libraries share."""
        count, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        if self._library.cuDeviceGetCount(ctypes.byref(count)) != _SUCCESS:
            return
        for device in range(count.value):
            status = self._library.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
            if status == _SUCCESS and active.value:
                yield device

    def _answer(self, device: int) -> int:
        """Return the driver's status for a call that always succeeds while the context works."""
        context = ctypes.c_void_p()
        if status := self._library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
            return int(status)
        try:
            with self._without_capture():
                if status := self._library.cuCtxPushCurrent_v2(context):
                    return int(status)
                try:
                    free, total = ctypes.c_size_t(), ctypes.c_size_t()
                    return int(self._library.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
                finally:
                    self._library.cuCtxPopCurrent_v2(ctypes.byref(context))
        finally:
            self._library.cuDevicePrimaryCtxRelease_v2(device)

    @contextmanager
    def _without_capture(self) -> Iterator[None]:
        mode = ctypes.c_int(_RELAXED)
        self._library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        try:
            yield
        finally:
            self._library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
