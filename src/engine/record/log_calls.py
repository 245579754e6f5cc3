"""The functions with which tasks and programs log: `log_metrics`, `log_params`, `log_text`, `log_artifact`.

In a task, log records go through the pipe of the task's worker. A process that a task started (by fork or otherwise)
writes its log records to the node's log socket, whose path is in an environment variable. Outside of tasks, log records
go to the record of the program itself. The functions `checked_...` check and convert the values; they do no I/O.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, SupportsFloat, SupportsIndex

from ...importer import PID
from ..node import context, log_socket
from ..wire import log_records
from ..wire.log_records import ARTIFACT_BYTES, NAME_CHARS, NAMES, TEXT_CHARS, Packed

_MOST_KNOWN = 10_000
_known: set[str] = set()  # names that have already passed the check


def checked_metrics(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values as floats.

    Raises:
        TypeError: a value is not a single number, or a name is not a text.
        ValueError: there are too many values, or a name is empty or too long.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"log_metrics takes a mapping of names to numbers, not {_kind(values)}")
    if len(values) > NAMES:
        raise ValueError(f"log_metrics takes at most {NAMES} values at a time, not {len(values)}")
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if name not in _known:
            _know(name)
        numbers[name] = value if type(value) is float else _number(name, value)
    return numbers


def checked_step(step: SupportsIndex | None) -> int | None:
    """Return the step as an integer.

    Raises:
        TypeError: the step is not an integer.
        ValueError: the step is out of range.
    """
    if step is None or type(step) is int:
        number = step
    else:
        try:
            number = operator.index(step)
        except TypeError:
            raise TypeError(f"step is an integer or None, not {_kind(step)}") from None
    if number is not None and not -(2**63) <= number < 2**63:
        raise ValueError(f"step must fit into 64 bits: {number}")
    return number


def checked_name(name: str) -> str:
    """Return the name if it is valid.

    Raises:
        TypeError, ValueError: the name is not valid.
    """
    if not isinstance(name, str):
        raise TypeError(f"a name is a text, not {_kind(name)}")
    if not 0 < len(name) <= NAME_CHARS:
        raise ValueError(f"a name has 1 to {NAME_CHARS} characters, and {name[:40]!r} has {len(name)}")
    return name


def checked_text(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"log_text takes a text, not {_kind(text)}")
    if len(text) > TEXT_CHARS:
        raise ValueError(
            f"log_text takes at most {TEXT_CHARS} characters, not {len(text)}: write it to a file, and "
            "give that to log_artifact"
        )
    return text


def checked_params(params: Mapping[str, Any]) -> str:
    """Return the params as the text of a JSON object. Values that JSON cannot represent become texts.

    Raises:
        TypeError, ValueError: the params are not a mapping, have a name that is not a text, or are too large.
    """
    if not isinstance(params, Mapping):
        raise TypeError(f"log_params takes a mapping of names to values, not {_kind(params)}")
    encoded = json.dumps({checked_name(name): _plain(value) for name, value in params.items()}, ensure_ascii=False)
    if len(encoded) > TEXT_CHARS:
        raise ValueError(
            f"log_params takes at most {TEXT_CHARS} characters of JSON at a time, and these are {len(encoded)}: write "
            "them to a file, and give that to log_artifact"
        )
    return encoded


def _plain(value: Any, depth: int = 8) -> Any:
    """Convert a param to a JSON value. Values that JSON cannot represent, such as nan and infinities, become texts."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if value - value == 0 else str(float(value))
    if depth and isinstance(value, Mapping):
        return {str(name): _plain(each, depth - 1) for name, each in value.items()}
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [_plain(each, depth - 1) for each in value]
    return str(value)


def _know(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"log_metrics takes texts as names, not {_kind(name)}")
    checked_name(name)
    if len(_known) < _MOST_KNOWN:
        _known.add(name)


def _number(name: str, value: Any) -> float:
    """Convert a single number to a float.

    Accepts numbers of Python, numpy, torch, jax, and types with ``__float__``.
    """
    if isinstance(value, str | bytes | bytearray):
        raise TypeError(f"log_metrics: {name!r} is a text, {value[:40]!r}: log_text takes texts, log_params settings")
    # arrays and tensors with a single element have this method, whatever their number of dimensions
    item = getattr(value, "item", None)
    try:
        single: SupportsFloat = item() if item is not None else value
        return float(single)
    except OverflowError:
        raise TypeError(f"log_metrics: {name!r} is an integer beyond what a float holds") from None
    except Exception as error:
        shape = getattr(value, "shape", None)
        of = f" of shape {tuple(shape)}" if shape is not None else ""
        raise TypeError(f"log_metrics: {name!r} is no single number, but {_kind(value)}{of}") from error


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


_PIECE_BYTES = 1024 * 1024
_now = time.time


def log_metrics(values: Mapping[str, Any], *, step: SupportsIndex | None = None) -> None:
    """Record numbers, such as those of a training step, in the record of the run, with rank and generation.

    A generation is one try of a broadcast, which may restart, for example after the loss of a node. The call does not
    wait, and works in any thread and process of a task. Outside of tasks the numbers are recorded for the program
    itself.

    Args:
        values: Names and values. A value is anything that `float` takes: a number, or an array or tensor with a single
            element (for an element on a GPU, the call waits until it is computed). nan and infinities are kept.
        step: The step.

    Raises:
        TypeError: A value is not a single number; the message names it.
        ValueError: There are more than 500 values, or a name has more than 128 characters.
    """
    record = log_records.metrics(_now(), checked_step(step), checked_metrics(values))
    task = context.current()
    if task is not None and task.log is not None and task.log.here:
        if task.log.wanted:
            task.log.put(task.attempt, record)
        else:
            context.signed(task)
    else:
        _log_elsewhere(record)
    if context.on_profile_step is not None and step is not None:
        context.on_profile_step("metrics", int(step))


def log_params(params: Mapping[str, Any]) -> None:
    """Record settings of the run, such as a learning rate. If a name is logged again, its newest value counts.

    Values without a JSON form are recorded as texts.

    Raises:
        TypeError: The argument is not a mapping, or a name is not a text.
        ValueError: The settings have more than 65,536 characters of JSON.
    """
    _log(log_records.params(_now(), checked_params(params)))


def log_text(text: str, *, name: str = "text", step: SupportsIndex | None = None) -> None:
    """Record a text, such as a sample that a model has generated.

    Args:
        text: The text, of at most 65,536 characters.
        name: The text's name in the record.
        step: The step.

    Raises:
        ValueError: The text is longer; use `log_artifact` to log it as a file.
    """
    _log(log_records.text(_now(), checked_step(step), checked_name(name), checked_text(text)))


def log_artifact(path: str | os.PathLike[str], name: str | None = None) -> None:
    """Copy a file of at most 256 MiB into the record of the run.

    The file is read before the call returns, and may be changed afterwards. A task ends when its artifacts have
    arrived.

    Args:
        path: The file.
        name: Its name in the record. Default: its own name.

    Raises:
        OSError: The file cannot be read, or the path is not a file.
        ValueError: The file is too large.
    """
    chosen = checked_name((Path(path).name or "file") if name is None else name)
    task = context.current()
    if task is not None and task.log is not None and task.log.here and not task.log.wanted:
        os.close(_opened(Path(path)))  # nothing is recorded, but a bad file must raise its error
        context.signed(task)
        return
    fd, size_bytes, digest = _copied(Path(path))
    try:
        record = log_records.artifact(_now(), chosen, size_bytes, digest)
        if not size_bytes:
            _log(record)
            return
        if task is not None and task.log is not None and task.log.here:
            task.log.put_blob(task.attempt, record, os.dup(fd))
        else:
            _log_elsewhere(record, fd)
    finally:
        os.close(fd)


def has_lost() -> bool:
    """Return whether log records of this process were lost, because the node did not accept them."""
    return _Elsewhere.warned


def _log(record: Packed) -> None:
    task = context.current()
    if task is not None and task.log is not None and task.log.here:
        if task.log.wanted:
            task.log.put(task.attempt, record)
        else:
            context.signed(task)
    else:
        _log_elsewhere(record)


class _Elsewhere:
    client: log_socket.LogClient | None = None
    warned = False


def _log_elsewhere(record: Packed, fd: int | None = None) -> None:
    path = os.environ.get(log_socket.VARIABLE)
    if path and not _is_program():
        try:
            _sent(path, log_records.line(record), [] if fd is None else [fd])
        except OSError as error:
            _warn(f"the node does not take it ({error.strerror or error})")
        return
    if not _is_program() and _is_child():
        return
    from . import program_log

    (records,) = log_records.packed([record])
    if fd is None:
        program_log.log(records)
    else:
        program_log.log_artifact(records, _content(fd))


def _is_program() -> bool:
    """Return whether a pool of this process has a record.

    If so, the process logs there, even in a task of another pool.
    """
    module = sys.modules.get("outrider.engine.record.program_log")
    return module is not None and module.is_here()


def _is_child() -> bool:
    """Return whether this process is only a helper of a program: a fork, or a process of multiprocessing.

    Such a process creates no record of its own, because it may end without notice, and there may be many of them.
    """
    multiprocessing = sys.modules.get("multiprocessing")
    return os.getpid() != PID or (multiprocessing is not None and multiprocessing.parent_process() is not None)


def _sent(path: str, line: bytes, fds: list[int]) -> None:
    client = _Elsewhere.client
    if client is None or client.path != path:
        if client is not None:
            client.close()
        client = _Elsewhere.client = log_socket.LogClient(path)
    try:
        client.send(line, fds)
    except (ConnectionError, TimeoutError, BlockingIOError):
        raise
    except OSError:  # code that closes all file descriptors after a fork has closed the socket: connect again
        client.send(line, fds)


def _warn(why: str) -> None:
    """Print a warning, once, that log records of this process are lost. The task continues."""
    if not _Elsewhere.warned:
        _Elsewhere.warned = True
        with suppress(Exception):  # stderr may be missing or closed
            print(f"outrider: what this process logs is lost: {why}", file=sys.stderr, flush=True)


def _copied(path: Path) -> tuple[int, int, str]:
    """Copy the file into memory. Return the file descriptor of the copy, its size in bytes, and its SHA-256."""
    source = _opened(path)
    try:
        digest, size_bytes = hashlib.sha256(), 0
        copy = os.memfd_create("artifact", os.MFD_CLOEXEC)
        try:
            while piece := os.read(source, _PIECE_BYTES):
                size_bytes += len(piece)
                _check_size(path, size_bytes)  # check again, because the file may grow while it is copied
                digest.update(piece)
                left = memoryview(piece)
                while left:
                    left = left[os.write(copy, left) :]
        except BaseException:
            os.close(copy)
            raise
        return copy, size_bytes, digest.hexdigest()
    finally:
        os.close(source)


def _opened(path: Path) -> int:
    """Open a file, and check that it may be logged. Return the file descriptor."""
    # with O_NONBLOCK, opening a named pipe (fifo) does not wait for a writer
    source = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        about = os.fstat(source)
        if not stat.S_ISREG(about.st_mode):
            raise IsADirectoryError(f"{path} is no file: log_artifact takes files, so pack a folder into one")
        _check_size(path, about.st_size)
    except BaseException:
        os.close(source)
        raise
    return source


def _check_size(path: Path, size_bytes: int) -> None:
    if size_bytes > ARTIFACT_BYTES:
        raise ValueError(
            f"{path} has {size_bytes:,} bytes, and log_artifact takes at most {ARTIFACT_BYTES:,}: keep larger files by "
            "checkpoint(), on a volume, or by Pool(keep=...)"
        )


def _content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)
