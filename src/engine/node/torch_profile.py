"""torch's profiler for a running task, if the task has imported torch already. This module never imports torch.

The profiler is used in the mode that records all threads of the process. Its default mode records only the thread that
begins the profiler, and this thread must also end it. Here, the task's thread cannot: it may be anywhere in its code.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ...lazy_named_tuple import NamedTuple


class Begun(NamedTuple):
    """The result of `begin`: torch's profiler, None if it did not begin; and why, "" if torch is just not imported."""

    profiler: Any
    problem: str


def begin() -> Begun:
    """Begin torch's profiler, if torch is imported. Never raises."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "profiler") or not hasattr(torch, "optim"):
        return Begun(None, "")  # torch is not imported, or its import is not finished
    try:
        config = _all_threads(torch)
        if config is None:
            return Begun(None, f"torch {torch.__version__} cannot profile all threads of a process: 2.7 can")
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        profiler = torch.profiler.profile(activities=activities, experimental_config=config)
        profiler.start()
    except Exception as error:  # noqa: BLE001  for example, the task runs a profiler itself
        return Begun(None, f"torch's profiler did not begin: {one_line(error)}")
    return Begun(profiler, "")


def end(profiler: Any, path: Path) -> str:
    """End torch's profiler, and write its trace to ``path``; return why that failed, or ""."""
    try:
        profiler.stop()
        profiler.export_chrome_trace(str(path))
    except Exception as error:  # noqa: BLE001  for example, the task has ended it
        return f"torch's profiler has no trace: {one_line(error)}"
    return ""


def one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".split("\n", 1)[0][:500]


def _all_threads(torch: Any) -> Any:
    config = torch._C._profiler._ExperimentalConfig
    for options in ({"profile_all_threads": True, "trace_only": True}, {"profile_all_threads": True}):
        try:
            return config(**options)
        except TypeError:
            continue
    return None
