"""The command `outrider`."""

from __future__ import annotations

import sys

from cyclopts import App, Parameter

from .gc import gc
from .log import log
from .logs import logs
from .ps import ps
from .report import report
from .run import run, with_program_apart
from .runs import runs
from .sim import sim

app = App(
    name="outrider",
    help="Runs ordinary Python functions on clusters that exist only while they are needed.",
    version_flags=["--version"],
)
for command in (gc, logs, ps, report, run, runs, sim):
    app.command(command)
app.command(log, default_parameter=Parameter(negative=""))
app.register_install_completion_command()


def main() -> None:
    app(with_program_apart(sys.argv[1:]))
