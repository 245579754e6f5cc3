"""What the workload runs on nodes. Each answer is known to whoever asks."""

from __future__ import annotations

import ctypes
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from outrider import Plugin, compute, instance_info, should_stop

LOSSES = 60  # how often a task of the workload is run again: losses are what is tried here


class Early(Plugin):
    """Has nodes forked from a template: it imports next to nothing there."""

    name: ClassVar[str] = "early"
    preload: ClassVar[tuple[str, ...]] = ("fractions", "statistics")


class ChildEnded(Exception):
    """A process that the task had started ended otherwise than it does by itself."""


class Expected(Exception):
    """What a task raises on purpose."""


@compute(retries=LOSSES)
def square(x: int) -> int:
    return x * x


@compute(retries=LOSSES)
def slow_square(x: int, seconds: float) -> int:
    time.sleep(seconds)
    return x * x


@compute(retries=LOSSES)
def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@compute(retries=LOSSES)
def blob(seed: int, size: int) -> bytes:
    return pattern(seed, size)


@compute(retries=LOSSES)
def turned(data: bytes) -> bytes:
    return data[::-1]


def pattern(seed: int, size: int) -> bytes:
    return (hashlib.sha256(str(seed).encode()).digest() * (size // 32 + 1))[:size]


@compute
def counted(count: int) -> Iterator[int]:
    for number in range(count):
        yield number * 3


@compute
def pieces(count: int, size: int) -> Iterator[bytes]:
    for number in range(count):
        yield pattern(number, size)


@compute
def total(numbers: Iterator[int]) -> int:
    return sum(numbers)


@compute
def doubled(numbers: Iterator[int]) -> Iterator[int]:
    for number in numbers:
        yield 2 * number


@compute(retry="never")
def once(mark: str, seconds: float) -> str:
    """Leaves a line each time it is run."""
    with open(mark, "a") as file:  # noqa: PTH123 - one write, whatever else is short
        file.write(f"{os.getpid()}\n")
    time.sleep(seconds)
    return mark


@compute(retries=LOSSES, max_restarts=3)
def second_time(mark: str) -> str:
    """Fails unless it was run before."""
    if Path(mark).exists():
        return mark
    Path(mark).touch()
    raise Expected("the first time")


@compute(retries=LOSSES)
def raises(text: str) -> None:
    raise Expected(text, 42)


@compute(retries=LOSSES, timeout=0.4)
def too_long(seconds: float) -> None:
    time.sleep(seconds)


@compute(retries=LOSSES, queue_timeout=0.2)
def impatient(x: int) -> int:
    return x * x


@compute(retries=LOSSES)
def with_child(seconds: float) -> int:
    """Starts a process, in a session of its own, and waits for it. In "/": no Python starts in a removed folder."""
    code = f"import time; time.sleep({seconds})"
    command = [sys.executable, "-S", "-c", code]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, cwd="/") as child:
        assert child.stderr is not None
        said = child.stderr.read()
        ended = child.wait()
    if ended:
        raise ChildEnded(f"with {ended}: {said[-1000:].decode(errors='replace')}")
    return 0


@compute(retries=LOSSES)
def leaves_child(seconds: float) -> int:
    """Starts a process and does not wait for it."""
    code = f"import time; time.sleep({seconds})"
    subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True, cwd="/")
    return 0


@compute(retries=LOSSES)
def writes(size: int) -> int:
    """Into the node's own folder, unless another task has removed it."""
    file = Path(f"written-{os.getpid()}")
    try:
        file.write_bytes(bytes(size))
        return file.stat().st_size
    except FileNotFoundError:
        return size
    finally:
        file.unlink(missing_ok=True)


@compute(retries=LOSSES)
def watchful(steps: int) -> int:
    """Asks again and again whether its node will be taken."""
    for _ in range(steps):
        should_stop()
        time.sleep(0.01)
    return steps


@compute
def place() -> tuple[int, int, str, int]:
    info = instance_info()
    return info.rank, info.world_size, f"{info.head_addr}:{info.head_port}", info.generation


# --- rude ones -----------------------------------------------------------------------------------------------------


@compute(retries=LOSSES)
def exits(code: int) -> None:
    os._exit(code)


@compute(retries=LOSSES)
def signals_itself(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


@compute(retries=LOSSES)
def breaks_memory() -> None:
    ctypes.string_at(0)


@compute(retries=LOSSES)
def leaves(code: int) -> None:
    raise SystemExit(code)


@compute(retries=LOSSES)
def closes_everything() -> int:
    os.closerange(3, 256)
    return 1


@compute(retries=LOSSES)
def returns_twice() -> int:
    """A child that it forks comes back from the function as well."""
    if os.fork() == 0:
        return 2
    return 1


@compute(retries=LOSSES)
def removes_its_folder() -> int:
    with suppress(OSError):  # another task has; or it is a small disk of its own, of which all else goes
        shutil.rmtree(Path.cwd())
    return 1


@compute(retries=LOSSES)
def lowers_its_limits() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    return 1


@compute(retries=LOSSES)
def unpicklable() -> object:
    return (number for number in range(3))


@compute(retries=LOSSES, timeout=0.5)
def stands_still() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@compute(retries=LOSSES, timeout=0.5)
def ignores_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(60)
