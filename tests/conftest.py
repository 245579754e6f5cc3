"""What all tests share: why one that passed at its second try (see .ci/run) had failed at its first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.write_sep("_", f"passed or failed at its second try: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
