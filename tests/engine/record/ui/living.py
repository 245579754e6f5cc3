"""A record that is written while somebody reads it: the files of another one, piece by piece."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outrider.engine.record.runs.reader import Run, read_json, run_of
from outrider.providers.shared.pool_lock import Lock

GROWING = ("events.jsonl", "metrics.jsonl", "system.jsonl")


class Living:
    """A run that lives in ``folder``, of whose record ``whole`` is the end."""

    def __init__(self, whole: Run, folder: Path) -> None:
        self._whole = whole.directory
        self.directory = folder / whole.id
        self.directory.mkdir(parents=True)
        (self.directory / "logs").mkdir()
        self._lock = Lock.take(self.directory)
        assert self._lock is not None
        shutil.copy(self._whole / "run.json", self.directory)
        self.status = read_json(self._whole / "status.json")
        self.write_status(state="running", ended=None, exit=None)
        for path in self._growing():
            (self.directory / path).touch()

    @property
    def run(self) -> Run:
        return run_of(self.directory)

    def _growing(self) -> list[str]:
        logs = [f"logs/{path.name}" for path in (self._whole / "logs").iterdir()]
        return [*(name for name in GROWING if (self._whole / name).exists()), *sorted(logs)]

    def grow(self, part: float) -> None:
        """Have each file its first bytes, up to this part of all of them: also half a line."""
        for path in self._growing():
            content = (self._whole / path).read_bytes()
            with (self.directory / path).open("ab") as file:
                file.write(content[file.tell() : int(len(content) * part)])

    def append(self, path: str, said: dict[str, Any]) -> None:
        with (self.directory / path).open("a") as file:
            file.write(json.dumps(said) + "\n")

    def write_status(self, **more: Any) -> None:
        new = self.directory / "status.json.new"
        new.write_text(json.dumps(self.status | more))
        new.rename(self.directory / "status.json")

    def end(self) -> None:
        """End it as its writer does."""
        self.grow(1.0)
        if (self._whole / "result.json").exists():
            shutil.copy(self._whole / "result.json", self.directory)
        self.write_status()
        self.close()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.give_back()
            self._lock = None


@contextmanager
def living(whole: Run, folder: Path) -> Iterator[Living]:
    made = Living(whole, folder)
    try:
        yield made
    finally:
        made.close()
