"""What the scenarios' pools run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from outrider import compute, instance_info, preemption


@compute
def where() -> str:
    return socket.gethostname()


@compute
def folder() -> str:
    """The executor's own, in which a notice is a file."""
    return str(Path.cwd().parent)


@compute
def waits() -> int:
    """The first attempt ends when its host has had enough; returns which one this was."""
    while instance_info().attempt == 1 and not Path("/root/enough").exists():
        time.sleep(0.05)
    return instance_info().attempt


@compute
def dies(how: str) -> None:
    """Notes when, and is no more."""
    Path("/root/died").write_text(repr(time.time()))
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSEGV)


@compute
def mark(number: int, seconds: float) -> int:
    """A line for each time it ran, and one for each time it ended, on the host it ran on."""
    for file in ("ran", "ended"):
        with Path("/root", file).open("a") as lines:
            lines.write(f"{number}\n")
        if file == "ran":
            time.sleep(seconds)
    return number


@compute
def told() -> float:
    """When the notice was seen in the task."""
    while preemption() is None:
        time.sleep(0.01)
    return time.time()


@compute
def kept() -> int:
    """Ends when a notice has come and gone; returns the attempt."""
    while preemption() is None:
        time.sleep(0.01)
    while preemption() is not None:
        time.sleep(0.01)
    return instance_info().attempt


@compute(retries=0)
def family() -> None:
    """A task with processes of its own, one of them in another session; it never ends."""
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1001"], start_new_session=True)
    Path("/root/began").touch()
    time.sleep(1000)


@compute(on_loss="restart")
def counts(lasts_s: float) -> tuple[int, int, int, str]:
    """Each generation leaves a line for each tenth of a second in which it ran; the first does not end."""
    info = instance_info()
    ends_at = time.time() + (1000 if info.generation == 1 else lasts_s)
    while time.time() < ends_at:
        with Path("/root/lived").open("a") as lines:
            lines.write(f"{info.generation} {time.time()!r}\n")
        time.sleep(0.1)
    return info.generation, info.rank, info.world_size, info.head_addr


class Reduced(NamedTuple):
    generation: int
    rank: int
    world_size: int
    head: str
    host: str
    first_line_at: float  # of its generation, on this rank
    steps: int
    sums: tuple[int, ...]  # that were not what they had to be


@compute(on_loss="restart")
def reduces(lasts_s: float) -> Reduced:
    """All-reduces for so long, by rank 0's clock; every sum is checked."""
    began = time.time()
    import torch
    import torch.distributed as dist

    info = instance_info()
    size, steps, wrong = info.world_size, 0, []
    while True:
        given = torch.tensor([info.rank + steps, int(info.rank == 0 and time.time() > began + lasts_s)])
        dist.all_reduce(given)
        total, over = given.tolist()
        if total != size * (size - 1) // 2 + size * steps:
            wrong.append(total)
        steps += 1
        if over:
            break
        time.sleep(0.002)
    return Reduced(info.generation, info.rank, size, info.head_addr, info.hostname, began, steps, tuple(wrong))
