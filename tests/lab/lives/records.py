"""What the records of a life's pools tell, in a state directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def events(state: Path, event: str) -> list[dict[str, Any]]:
    """Those of that name, of all pools."""
    mark = f'"event":"{event}"'
    paths = state.glob("runs/*/events.jsonl")
    return [json.loads(line) for path in paths for line in path.read_text().splitlines() if mark in line]


def stragglers(state: Path, nodes: int) -> int:
    """How many machines a client may have in the place of stragglers: on a busy computer a node may boot so late that
    the pool asks for another one. That is at most every second node.
    """
    return min(len(events(state, "node_late")), (nodes + 1) // 2)
