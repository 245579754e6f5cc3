"""How far a node's image is: what `bootstrap` tells while it works."""

from __future__ import annotations

from typing import Literal, NamedTuple

Name = Literal["probe", "upload", "python", "apt", "packages", "files", "volumes", "run", "executor"]  # in this order
State = Literal["started", "line", "finished"]


class Phase(NamedTuple):
    """``text``: what is done (started), or what it printed (line); ``seconds`` since its start."""

    name: str
    state: State
    text: str = ""
    seconds: float = 0.0
