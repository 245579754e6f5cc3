"""An extract of a cloud's published schema, in a JSON file beside the test cloud: operations and their data types."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from .schema import Schemas


class Extract:
    """The extract in a file. The file is read on first use.

    It has ``schemas`` by name, and ``operations`` by name. Each operation has a ``method``, a ``path`` such as
    ``/instances/{id}``, and further keys that only the test cloud's own code reads.
    """

    def __init__(self, file: Path, *, operations: str = "operations") -> None:
        self._file, self._key = file, operations

    @cached_property
    def document(self) -> Mapping[str, Any]:
        document: dict[str, Any] = json.loads(self._file.read_text("utf-8"))
        return document

    @property
    def operations(self) -> Mapping[str, Any]:
        operations: Mapping[str, Any] = self.document[self._key]
        return operations

    @cached_property
    def schemas(self) -> Schemas:
        return Schemas(self.document["schemas"])

    def action(self, method: str, path: str) -> str:
        """Return the name of the operation with this method and path; empty: there is no such operation."""
        there = (name for name, route in self._routes.items() if route.fullmatch(path))
        return next((name for name in there if self.operations[name]["method"] == method), "")

    def parts(self, action: str, path: str) -> dict[str, str]:
        """Return the values that a path has for the placeholders of an operation, such as ``id``."""
        match = self._routes[action].fullmatch(path)
        assert match is not None
        return match.groupdict()

    @cached_property
    def _routes(self) -> Mapping[str, re.Pattern[str]]:
        return {
            name: re.compile("/" + re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", operation["path"].lstrip("/")))
            for name, operation in self.operations.items()
        }
