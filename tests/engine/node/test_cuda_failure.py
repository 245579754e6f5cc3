"""A worker in which CUDA has failed for good gives its place to another; the driver's library is one of ten lines."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.node.between_tasks import Cuda
from outrider.engine.wire import messages as m

# Two devices; this process has a context on the second. CUDA_SAYS is what the driver answers: retain, push, memory.
LIBRARY = """
#include <stdio.h>
#include <stdlib.h>
static int says[3], retained, pushed;
static void ask(void) { sscanf(getenv("CUDA_SAYS"), "%d %d %d", says, says + 1, says + 2); }
int cuDeviceGetCount(int *count) { ask(); *count = 2; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *active = device == 1; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { if (!says[0]) retained++; return says[0]; }
int cuDevicePrimaryCtxRelease_v2(int device) { retained--; return 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) { static int now; int old = now; now = *mode; *mode = old; return 0; }
int cuCtxPushCurrent_v2(void *context) { if (!says[1]) pushed++; return says[1]; }
int cuCtxPopCurrent_v2(void **context) { pushed--; return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { return pushed == 1 ? says[2] : 201; }
int held(void) { int mode = 0; cuThreadExchangeStreamCaptureMode(&mode); return 100 * mode + 10 * retained + pushed; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "cuda.c").write_text(LIBRARY)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "libcuda.so", folder / "cuda.c"], check=True)
    return folder / "libcuda.so"


@pytest.mark.parametrize(
    ("answers", "failed"),
    [
        ("0 0 0", False),
        ("0 0 710", True),
        ("0 700 0", True),
        ("719 0 0", True),
        ("0 0 2", False),  # out of memory: the next task may need less
        ("3 0 0", False),  # not initialized
    ],
)
def test_what_the_driver_answers_decides(
    library: Path, monkeypatch: pytest.MonkeyPatch, answers: str, failed: bool
) -> None:
    monkeypatch.setenv("CUDA_SAYS", answers)
    loaded = ctypes.CDLL(str(library))
    cuda = Cuda(library=str(library), drivers=("/dev/null",))
    assert [cuda.has_failed(), cuda.has_failed()] == [failed, failed]
    assert loaded.held() == 0, "the question has left something"


def test_a_process_that_has_not_loaded_cuda_does_not_load_it(library: Path, tmp_path: Path) -> None:
    own = tmp_path / "libcuda-unused.so"
    own.write_bytes(library.read_bytes())
    assert not Cuda(library=str(own), drivers=("/dev/null",)).has_failed()
    assert str(own) not in Path("/proc/self/maps").read_text()


def test_no_driver_and_another_library_are_no_failure(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_SAYS", "0 0 710")
    ctypes.CDLL(str(library))
    assert not Cuda(library=str(library), drivers=("/no/such/device",)).has_failed()
    assert not Cuda(library="libc.so.6", drivers=("/dev/null",)).has_failed()


def _break_cuda(error: str) -> int:
    Cuda.has_failed = lambda _self: True  # type: ignore[method-assign]
    if error:
        raise ValueError(error)
    import time

    time.sleep(0.01)
    return os.getpid()


@pytest.mark.anyio
@pytest.mark.parametrize("error", ["device-side assert triggered", ""])
async def test_the_next_task_gets_another_process(make: Any, error: str) -> None:
    client = await make()
    first = await client.call(os.getpid)
    attempt = client.run(_break_cuda, error)
    following = [client.run(os.getpid) for _ in range(3)]  # they may be in the pipe already
    assert isinstance(await client.answer(attempt), m.Failed if error else m.Done)
    pids = {client.result(await client.answer(each)) for each in following}
    assert len(pids) == 1
    assert first not in pids


@pytest.mark.anyio
async def test_a_process_with_threads_ends_once_no_task_runs_there(make: Any) -> None:
    client = await make(slots=2, kind="thread")
    slow = client.run(_sleeps)
    await client.answer(client.run(_break_cuda, "device-side assert triggered"))
    first = client.result(await client.answer(slow))
    assert await client.call(os.getpid) != first


def _sleeps() -> int:
    import time

    time.sleep(0.5)
    return os.getpid()
