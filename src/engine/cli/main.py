"""The command `outrider`."""

from __future__ import annotations

import sys

from cyclopts import App, Parameter

from .run import with_program_apart

COMMANDS = ("gc", "log", "logs", "ps", "report", "run", "runs", "sim", "stop", "wait")  # each is imported when it is called

app = App(
    name="outrider",
    help="Runs ordinary Python functions on clusters that exist only while they are needed.",
    version_flags=["--version"],
)
for command in COMMANDS:
    options = {"default_parameter": Parameter(negative="")} if command == "log" else {}
    app.command(f"{__package__}.{command}:{command}", name=command, **options)
app.register_install_completion_command()


def main() -> None:
    tokens = with_program_apart(sys.argv[1:])
    if not {*tokens[:1]} & {*COMMANDS}:  # help says what each of them is for
        for command in COMMANDS:
            app[command]
    app(tokens)
