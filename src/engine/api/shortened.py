"""`short`: formats values for messages as Python code, at most a line long."""

from __future__ import annotations

import reprlib


class _Short(reprlib.Repr):
    """A `reprlib.Repr` that truncates bytes before it formats them; Python's own takes seconds for a gigabyte."""

    def repr_bytes(self, value: bytes, level: int) -> str:  # noqa: ARG002
        return repr(value) if len(value) <= self.maxstring else f"{bytes(value[: self.maxstring // 2])!r}..."

    repr_bytearray = repr_bytes


short = _Short()
short.maxstring = short.maxother = 60
