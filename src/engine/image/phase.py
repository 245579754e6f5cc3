"""The progress of a bootstrap, as `bootstrap` reports it."""

from __future__ import annotations

from typing import Literal, NamedTuple

Name = Literal["probe", "upload", "python", "apt", "packages", "files", "volumes", "run", "executor"]  # in this order
State = Literal["started", "line", "finished"]


class Phase(NamedTuple):
    """``text``: what is being done (started), or a line of output (line). ``seconds``: since the phase began."""

    name: str
    state: State
    text: str = ""
    seconds: float = 0.0
