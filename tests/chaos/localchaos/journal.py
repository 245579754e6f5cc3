"""What happens in a life, a line of JSON each, written by its client: it is complete however that one ends."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

Entry = dict[str, Any]  # "at": of the monotonic clock, the same in all processes; "what"; and facts


class Journal:
    """For the client, which may have no descriptor left later: this one is open from the beginning."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, what: str, **facts: object) -> None:
        line = json.dumps({"at": round(time.monotonic(), 4), "what": what, **facts}, default=str)
        os.write(self.fd, line.encode() + b"\n")


class Reader:
    """For the supervisor, which reads it while it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self._read = 0

    def refresh(self) -> list[Entry]:
        """What is new."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        new: list[Entry] = [json.loads(line) for line in whole.splitlines()]
        self.entries += new
        return new

    def find(self, what: str) -> Entry | None:
        self.refresh()
        return next((entry for entry in self.entries if entry["what"] == what), None)
