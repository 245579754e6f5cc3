"""What all tests share: credentials of their own alone, and why one that passed at its second try had failed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

os.environ["AWS_EC2_METADATA_DISABLED"] = "true"  # else AWS's client asks the network who this computer may be


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.write_sep("_", f"passed or failed at its second try: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
