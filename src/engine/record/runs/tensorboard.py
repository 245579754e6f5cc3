"""TensorBoard's event files of a record, made from its metrics.

Each rank of a broadcast has a folder, and so has each other call. After `MOST_FOLDERS` folders, further metrics are
only in the record.

A file is a sequence of records, each with its length and masked CRC-32C, of Event messages (TensorFlow's tf_record
format, and `event.proto` and `summary.proto` of TensorBoard). If a broadcast restarts at an earlier step, a session
start is written: TensorBoard then hides the later steps that were logged before the restart.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from ....lazy_dataclass import dataclass
from .metrics import METRICS, Logged, metrics_in

FOLDER = "tb"
# Most folders for one record: each task of a map has its own folder, and a map may have a million tasks.
MOST_FOLDERS = 4096
CHUNK = 16 * 1024  # bytes of the metrics that are read at a time
_MASK = 0xA282EAD8
_START = 1  # the value of SessionLog.START in event.proto
_HEADER, _DOUBLE, _FLOAT, _U32 = struct.Struct("<Q"), struct.Struct("<d"), struct.Struct("<f"), struct.Struct("<I")


def write_tensorboard(directory: Path) -> None:
    """Write the event files of the record in ``directory`` anew, for a run that was killed before it wrote all of
    them.
    """
    for file in (directory / FOLDER).rglob("events.out.tfevents.*"):
        file.unlink()
    TensorBoardFiles(directory).catch_up(float("inf"))


@dataclass(slots=True)
class _Series:
    path: Path
    generation: int
    step: int  # the last step that is in the file


class TensorBoardFiles:
    """The event files of one record.

    Each call of `catch_up` writes the metrics that were logged since the last call.
    """

    def __init__(self, directory: Path) -> None:
        self._metrics, self._folder = directory / METRICS, directory / FOLDER
        self._read = 0  # number of bytes of the metrics file that were read
        self._series: dict[str, _Series] = {}

    def catch_up(self, within_s: float) -> bool:
        """Write the metrics that were logged since the last call, but stop after ``within_s`` seconds.

        Return whether all are written.

        Raises:
            OSError: A file cannot be read or written.
        """
        until = time.monotonic() + within_s
        while lines := self._next_lines():
            events: dict[Path, list[bytes]] = {}
            for logged in metrics_in(lines):
                for path, event in self._events(logged):
                    events.setdefault(path, []).append(event)
            for path, parts in events.items():
                self._append(path, b"".join(parts))
            if time.monotonic() > until:
                return False
            time.sleep(0)  # release the GIL for other threads
        return True

    def _next_lines(self) -> list[bytes]:
        try:
            with self._metrics.open("rb", buffering=0) as file:
                file.seek(self._read)
                content = file.read(CHUNK)
                while content and b"\n" not in content and (more := file.read(CHUNK)):
                    content += more
        except FileNotFoundError:
            return []
        whole, newline, _ = content.rpartition(b"\n")
        self._read += len(whole) + len(newline)
        return whole.split(b"\n") if newline else []

    def _append(self, path: Path, events: bytes) -> None:
        for folder in (self._folder, *reversed(path.relative_to(self._folder).parents[:-1])):
            (self._folder / folder).mkdir(mode=0o700, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            left = memoryview(events)
            while left:
                left = left[os.write(file, left) :]
        finally:
            os.close(file)

    def _events(self, logged: Logged) -> Iterator[tuple[Path, bytes]]:
        name = _folder_name(logged)
        series = self._series.get(name)
        if series is None:
            if len(self._series) >= MOST_FOLDERS:
                return
            path = (
                self._folder
                / name
                / f"events.out.tfevents.{int(logged.at):010}.outrider.{os.getpid()}.{len(self._series)}"
            )
            series = self._series[name] = _Series(path, logged.generation, -1)
            yield path, record(version_event(logged.at))
        step = series.step + 1 if logged.step is None else logged.step
        if logged.generation > series.generation:
            if step <= series.step:
                yield series.path, record(restart_event(logged.at, step))
            series.generation = logged.generation
        series.step = step
        yield series.path, record(scalars_event(logged.at, step, logged.values))


def _folder_name(logged: Logged) -> str:
    """Return the folder name of the metrics' series, which TensorBoard shows as the name of a run.

    It has the function's name, the number of the job and, in a broadcast, of the rank.
    """
    function = re.sub(r"[^A-Za-z0-9._-]+", "-", logged.function).strip("-.") or "program"
    whose = f"{function}-{logged.job}" if logged.job else function
    return f"{whose}/rank-{logged.rank:03}" if logged.rank is not None else whose


def record(event: bytes) -> bytes:
    """Return an encoded Event message as a record of a tf_record file."""
    header = _HEADER.pack(len(event))
    return b"".join((header, _U32.pack(masked(crc32c(header))), event, _U32.pack(masked(crc32c(event)))))


def version_event(at: float) -> bytes:
    return _time(at) + _text(3, b"brain.Event:2")  # number 3 is the field Event.file_version


def restart_event(at: float, step: int) -> bytes:
    # number 7 is the field Event.session_log, which contains SessionLog.status
    return _time(at) + _step(step) + _text(7, b"\x08" + _varint(_START))


def scalars_event(at: float, step: int, values: dict[str, float]) -> bytes:
    """Return an encoded Event message with a Summary of simple values."""
    summary = b"".join(
        _text(1, _text(1, name.encode(errors="replace")) + b"\x15" + _single(value)) for name, value in values.items()
    )
    return _time(at) + _step(step) + _text(5, summary)


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the CRC-32C checksum (Castagnoli; RFC 3720, B.4) of ``data``."""
    crc = 0xFFFFFFFF
    table = _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _time(at: float) -> bytes:
    return b"\x09" + _DOUBLE.pack(at)  # the field Event.wall_time


def _step(step: int) -> bytes:
    return b"\x10" + _varint(step & 0xFFFFFFFFFFFFFFFF)


def _text(field: int, content: bytes) -> bytes:
    return bytes((field << 3 | 2,)) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _single(value: float) -> bytes:
    try:
        return _FLOAT.pack(value)
    except OverflowError:  # the value is too large for a float of 32 bits
        return _FLOAT.pack(float("inf") if value > 0 else float("-inf"))


def _table() -> list[int]:
    table = []
    for number in range(256):
        crc = number
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 if crc & 1 else crc >> 1
        table.append(crc)
    return table


_TABLE = _table()
