"""The record to which the program itself logs, outside of tasks: its pool's record, or a record of its own."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from ..api.sink import Origin
from .runs.logged import Batch
from .runs.writer import Plan, RunEnd, RunWriter
from .surroundings import leaves_record

_open: list[RunWriter] = []  # open records of the pools of this process; the program logs to the last one
_lock = threading.Lock()


class _Program:
    own: RunWriter | None = None  # the record of the program itself, if it logs while no pool has a record
    process = 0  # pid of the process that opened the records


def opened(writer: RunWriter) -> None:
    with _lock:
        if _Program.process != os.getpid():  # after a fork, this process must not write its parent's records
            _open.clear()
            _Program.own = None
        _open.append(writer)
        _Program.process = os.getpid()


def closed(writer: RunWriter) -> None:
    with _lock:
        if writer in _open:
            _open.remove(writer)


def is_here() -> bool:
    """Return whether a pool of this process has an open record."""
    return bool(_open) and _Program.process == os.getpid()


def log(records: bytes) -> None:
    """Log records of the program itself, outside of tasks."""
    if (writer := _writer()) is not None:
        writer.log.put(Batch(Origin(), records, 0, time.time()))


def log_artifact(records: bytes, content: bytes | memoryview) -> None:
    """Log an artifact of the program itself. Return when it is written."""
    if (writer := _writer()) is not None and writer.ready():
        writer.log.put_artifact(Batch(Origin(), records, 0, time.time()), content)


def _writer() -> RunWriter | None:
    """Return the record to which the program logs. Create it if necessary.

    None: records are switched off, or this process is a fork of the process that owns the record.
    """
    with _lock:
        if _Program.process not in {0, os.getpid()}:
            return None
        if _open:
            return _open[-1]
        if _Program.own is None and leaves_record(None):
            _Program.own = _begun()
        return _Program.own


def _begun() -> RunWriter:
    from .runs.description import program_facts
    from .runs.names import runs_folder, usual_name

    plan = Plan(name=usual_name(), folder=runs_folder(), describe=program_facts, source=source())
    writer = RunWriter(plan, state="running")
    writer.start()
    _Program.process = os.getpid()
    atexit.register(_end, writer, os.getpid())
    return writer


def _end(writer: RunWriter, process: int) -> None:
    if os.getpid() == process:
        writer.close(RunEnd(getattr(sys, "last_value", None)))


def source() -> Path | None:
    """Return the folder of this program's script or, if there is no script (as in a notebook), the current folder."""
    with suppress(OSError):
        script = Path(sys.argv[0] if sys.argv else "").absolute()
        return script.parent if script.is_file() and not script.is_relative_to(sys.prefix) else Path.cwd()
    return None
