"""The MPS plugin: tasks of a node use its GPUs at the same time, through an MPS daemon that belongs to the pool."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ...lazy_dataclass import dataclass
from ..api.errors import SpecError
from ..api.plugin import Plugin, Setup
from ..node.process import kill_tree
from ..serialization.program import environment
from . import nvidia

if TYPE_CHECKING:
    from ..api.plugin import NodeSide

CONTROL = "nvidia-cuda-mps-control"
UP_S = 20.0
QUIT_S = 5.0
POLL_S = 0.1


def mps(*, active_thread_percentage: int | None = None, memory_limit: str | None = None) -> Mps:
    """Let the tasks of a node use its GPUs at the same time: their kernels run side by side, in one context.

    For many small tasks: with ``Worker(concurrency=4)`` four tasks share the GPUs.

    Args:
        active_thread_percentage: The share of a GPU's multiprocessors that one task can use. Default: no limit.
        memory_limit: The GPU memory of each task, such as "8G". Default: no limit.

    Raises:
        SpecError: An option is not valid.
    """
    percentage = active_thread_percentage
    if percentage is not None and (
        not isinstance(percentage, int) or isinstance(percentage, bool) or not 1 <= percentage <= 100
    ):
        raise SpecError(f"plugins.mps: active_thread_percentage takes 1 to 100, not {percentage!r}.")
    if memory_limit is not None and not re.fullmatch(r"\d+[GM]B?", str(memory_limit)):
        raise SpecError(f"plugins.mps: memory_limit takes a size such as '8G' or '500M', not {memory_limit!r}.")
    return Mps(percentage, None if memory_limit is None else memory_limit.removesuffix("B"))


@dataclass(frozen=True)
class Mps(Plugin):
    """The plugin that `mps` makes."""

    percentage: int | None = None
    memory_limit: str | None = None

    name: ClassVar[str] = "mps"
    shares_devices: ClassVar[bool] = True

    @contextmanager
    def node(self, side: NodeSide) -> Iterator[Setup]:  # noqa: ARG002
        """Run the daemon while the pool is open.

        Raises:
            SpecError: there is no GPU or no driver, or the daemon does not start; the message has its output.
        """
        gpus = nvidia.gpus()
        if not gpus:
            raise SpecError("plugins.mps: this node has no GPU.")
        # mode 0700, and a short name because paths of sockets are limited to 107 bytes
        folder = Path(tempfile.mkdtemp(prefix="mps-"))
        env = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
        if "CUDA_VISIBLE_DEVICES" in os.environ:
            # The daemon renumbers devices for its clients; UUIDs mean the same devices to the daemon and its clients.
            env["CUDA_VISIBLE_DEVICES"] = os.environ.get("OUTRIDER_MIG_DEVICES") or ",".join(gpu.uuid for gpu in gpus)
        try:
            for name in ("pipe", "log"):
                (folder / name).mkdir()
            with _daemon(folder, env):
                for line in self.settings(len(gpus)):
                    _control(line, env)
                yield Setup(env=env)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def settings(self, gpus: int) -> list[str]:
        """Return the commands to send to the daemon before its first client."""
        lines = []
        if self.percentage is not None:
            lines.append(f"set_default_active_thread_percentage {self.percentage}")
        if self.memory_limit is not None:
            lines += [f"set_default_device_pinned_mem_limit {gpu} {self.memory_limit}" for gpu in range(gpus)]
        return lines


@contextmanager
def _daemon(folder: Path, env: Mapping[str, str]) -> Iterator[None]:
    """Run the daemon in the foreground, so that it ends with the node, even if the node is killed."""
    with (folder / "log" / "output").open("wb") as output:
        process = subprocess.Popen(  # noqa: S603
            [nvidia.tool(CONTROL), "-f"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            start_new_session=True,
        )
    try:
        _wait_up(process, folder, env)
        yield
        with suppress(nvidia.ToolFailed, subprocess.TimeoutExpired):
            _control(f"quit -t {QUIT_S:g}", env)
            process.wait(QUIT_S)
    finally:
        if process.poll() is None:
            kill_tree(process.pid)
            process.wait()


def _wait_up(process: subprocess.Popen[bytes], folder: Path, env: Mapping[str, str]) -> None:
    deadline = time.monotonic() + UP_S
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(nvidia.ToolFailed):
            _control("get_default_active_thread_percentage", env)
            return
        time.sleep(POLL_S)
    log = [*(folder / "log").glob("*")]
    lines = [line for file in log for line in file.read_text(errors="replace").splitlines()]
    raise SpecError(f"{CONTROL} does not come up on this node: {' / '.join(lines[-5:]) or 'it says nothing'}")


def _control(line: str, env: Mapping[str, str]) -> str:
    """Send a command to the daemon; return its reply.

    Raises:
        nvidia.ToolFailed: the daemon does not reply, or refuses the command.
    """
    with environment(env):
        return nvidia.run(CONTROL, stdin=f"{line}\n")
