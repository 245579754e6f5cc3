"""The command `outrider`: one verb per module beside this one."""

from __future__ import annotations

from cyclopts import App

app = App(
    name="outrider",
    help="Runs ordinary Python functions on clusters that exist only while they are needed.",
    version_flags=["--version"],
)
app.command("outrider.engine.cli.gc:gc", name="gc")
app.command("outrider.engine.cli.ps:ps", name="ps")
app.command("outrider.engine.cli.sim:sim", name="sim")


def main() -> None:
    app()
