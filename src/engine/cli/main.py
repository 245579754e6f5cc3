"""The command `outrider`."""

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
for command in (gc, ps, sim):
    app.command(command)


def main() -> None:
    app()
