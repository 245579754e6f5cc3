"""The command `outrider`: one verb per module beside this one."""

from __future__ import annotations

from cyclopts import App

from .gc import gc
from .ps import ps
from .sim import sim

app = App(
    name="outrider",
    help="Runs ordinary Python functions on clusters that exist only while they are needed.",
    version_flags=["--version"],
)
for verb in (gc, ps, sim):
    app.command(verb)


def main() -> None:
    app()
