"""`outrider gc`, as a user calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAIN = "import sys; from outrider.engine.cli.main import main; sys.exit(main())"
GC_S = 300.0  # for 150 s a lost launch may yet appear


@dataclass(frozen=True, slots=True)
class Collected:
    """How one `outrider gc` ended."""

    status: int
    text: str


def gc(*options: str, env: Mapping[str, str], before: Sequence[str] = ()) -> Collected:
    """``before``: a command that runs it."""
    done = subprocess.run(
        [*before, sys.executable, "-c", MAIN, "gc", *options],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=GC_S,
        check=False,
    )
    return Collected(done.returncode, done.stdout)
