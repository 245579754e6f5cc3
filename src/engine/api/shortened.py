"""`short`: values in messages, as one would write them, but not longer than a line."""

from __future__ import annotations

import reprlib


class _Short(reprlib.Repr):
    """Python's own shortens whole texts of bytes, of which a gigabyte takes seconds."""

    def repr_bytes(self, value: bytes, level: int) -> str:  # noqa: ARG002
        return repr(value) if len(value) <= self.maxstring else f"{bytes(value[: self.maxstring // 2])!r}..."

    repr_bytearray = repr_bytes


short = _Short()
short.maxstring = short.maxother = 60
