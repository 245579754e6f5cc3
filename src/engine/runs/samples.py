"""System samples of a record: `system.jsonl`, a line for each node and sample, as it is written and read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from ...actors.events import GpuSample, NodeSampled
from ...lazy_dataclass import dataclass
from .lines import whole_lines

SYSTEM = "system.jsonl"
CHUNK = 1024 * 1024  # bytes of the file that are read at a time
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


def sample_fields(sampled: NodeSampled) -> dict[str, Any]:
    """Return a sample as JSON values, without its time."""
    said = asdict(sampled)
    del said["at"]
    return said


def sample_line(sampled: NodeSampled, at: float) -> bytes:
    """Return a sample as a line of JSON. ``at``: its time, where it has none of its own."""
    return _ENCODE({"at": sampled.at or at, **sample_fields(sampled)}).encode() + b"\n"


def read_samples(directory: Path) -> list[NodeSampled]:
    """Return all samples of the record in ``directory``, as they came; none where it has none."""
    return list(SampleFile(directory).new_samples())


def samples_in(lines: Iterable[bytes]) -> Iterator[NodeSampled]:
    """Return the samples of those lines that can be read."""
    for line in lines:
        try:
            said = json.loads(line)
            gpus = tuple(_gpu(each) for each in said["gpus"])
            whole = {name: int(said[name]) for name in _WHOLE}
            parts = {name: float(said[name]) for name in _PARTS}
            yield NodeSampled(at=float(said["at"]), gpus=gpus, **whole, **parts)  # type: ignore[arg-type]
        except (ValueError, TypeError, KeyError, OverflowError):  # a disk that was full has left it
            continue


@dataclass(slots=True)
class SampleFile:
    """The samples of the record in ``directory``, which may still be written."""

    directory: Path
    _read: int = field(default=0)  # bytes

    @classmethod
    def at_end(cls, directory: Path, size_bytes: int) -> SampleFile:
        """Return the file without what stands before its last ``size_bytes``: of a long run the rest is much."""
        size = 0
        with suppress(FileNotFoundError):
            size = (directory / SYSTEM).stat().st_size
        return cls(directory, max(0, size - size_bytes))  # half a line is no sample

    def new_samples(self) -> Iterator[NodeSampled]:
        """Yield the samples that have been added since the last call. A line that is not whole is left for later."""
        with suppress(FileNotFoundError), (self.directory / SYSTEM).open("rb", buffering=0) as file:
            file.seek(self._read)
            rest = b""
            while chunk := file.read(CHUNK):
                content = rest + chunk
                rest = content[content.rfind(b"\n") + 1 :]
                self._read += len(content) - len(rest)
                yield from samples_in(whole_lines(content))


_WHOLE = (
    "node",
    "memory_bytes",
    "memory_total_bytes",
    "disk_bytes",
    "disk_total_bytes",
    "received_bytes",
    "sent_bytes",
)
_PARTS = ("seconds", "cpu", "cpus")


def _gpu(said: dict[str, Any]) -> GpuSample:
    utilisation, watts = said["utilisation"], said["watts"]
    return GpuSample(
        int(said["index"]),
        None if utilisation is None else float(utilisation),
        int(said["memory_bytes"]),
        int(said["memory_total_bytes"]),
        None if watts is None else float(watts),
    )
