"""System samples: measurements of a node's processors, memory, disk, network and GPUs.

They are in the record's file `system.jsonl`, one line for each node and sample.
"""

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
    """Return the fields of a sample as JSON values, without its time."""
    fields = asdict(sampled)
    del fields["at"]
    return fields


def sample_line(sampled: NodeSampled, at: float) -> bytes:
    """Return a sample as a line of JSON. ``at``: the unix time, used if the sample has none."""
    return _ENCODE({"at": sampled.at or at, **sample_fields(sampled)}).encode() + b"\n"


def read_samples(directory: Path) -> list[NodeSampled]:
    """Return all samples of the record in ``directory``, in the order in which they arrived."""
    return list(SampleFile(directory).new_samples())


def samples_in(lines: Iterable[bytes]) -> Iterator[NodeSampled]:
    """Yield the samples of all lines that can be parsed."""
    for line in lines:
        try:
            fields = json.loads(line)
            gpus = tuple(_gpu(each) for each in fields["gpus"])
            whole = {name: int(fields[name]) for name in _WHOLE}
            parts = {name: float(fields[name]) for name in _PARTS}
            yield NodeSampled(at=float(fields["at"]), gpus=gpus, **whole, **parts)  # type: ignore[arg-type]
        except (ValueError, TypeError, KeyError, OverflowError):  # a full disk damaged the line
            continue


@dataclass(slots=True)
class SampleFile:
    """A reader of the samples of the record in ``directory``, while they may still be written."""

    directory: Path
    _read: int = field(default=0)  # number of bytes that were already read

    @classmethod
    def at_end(cls, directory: Path, size_bytes: int) -> SampleFile:
        """Return a reader that begins ``size_bytes`` before the end of the file, as a long run's file is large."""
        size = 0
        with suppress(FileNotFoundError):
            size = (directory / SYSTEM).stat().st_size
        # reading may begin inside a line; `samples_in` skips such a partial line
        return cls(directory, max(0, size - size_bytes))

    def new_samples(self) -> Iterator[NodeSampled]:
        """Yield the samples that were added since the last call.

        An incomplete last line is read again in the next call.
        """
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


def _gpu(fields: dict[str, Any]) -> GpuSample:
    utilisation, watts = fields["utilisation"], fields["watts"]
    return GpuSample(
        int(fields["index"]),
        None if utilisation is None else float(utilisation),
        int(fields["memory_bytes"]),
        int(fields["memory_total_bytes"]),
        None if watts is None else float(watts),
    )
