"""The command `outrider`."""

from __future__ import annotations

import sys

from cyclopts import App, Parameter

from .run import with_program_apart

# The commands, each of which is imported when it is called.
COMMANDS = ("gc", "log", "logs", "ps", "report", "run", "runs", "sim", "stop", "top", "wait")

app = App(
    name="outrider",
    help="Runs ordinary Python functions on clusters that exist only while they are needed.",
    version_flags=["--version"],
    default_parameter=Parameter(negative=""),  # no --no-... beside each flag
)
for command in COMMANDS:
    app.command(f"{__package__}.{command}:{command}", name=command)
app.register_install_completion_command()


def main() -> None:
    tokens = with_program_apart(sys.argv[1:])
    if not {*tokens[:1]} & {*COMMANDS}:  # help says what each of them is for
        for command in COMMANDS:
            app[command]
    app(tokens)
