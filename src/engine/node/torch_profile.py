"""torch's own profiler around a running task, if the task has already imported torch. This module never imports torch.

The profiler records all threads of the process. Its default mode records only the thread that begins it, and must be
ended at the place in the code where it was begun: this is impossible for a task that is interrupted anywhere.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ...lazy_named_tuple import NamedTuple


class Begun(NamedTuple):
    """The state after `begin`. ``profiler``: None if it did not begin.

    ``problem``: the reason, if torch is imported.
    """

    profiler: Any
    problem: str


def begin() -> Begun:
    """Begin torch's profiler, in the thread that has imported torch. Never raises."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "profiler") or not hasattr(torch, "optim"):
        return Begun(None, "")  # not imported, or its import is not finished
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
    """End the profiler and write its trace; return the problem, or "" if there is none."""
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
