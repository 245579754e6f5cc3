"""Running the system's tools, with a time limit, and with their own words in the error."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

LIMIT_S = 120.0


class LabError(RuntimeError):
    """The lab itself could not do something: nothing is known about the code under test."""


def run(
    argv: Sequence[str],
    *,
    stdin: str = "",
    check: bool = True,
    limit_s: float = LIMIT_S,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run to the end; ``check``: a failure raises with what it printed.

    Raises:
        LabError
        TimeoutError
    """
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=limit_s, env=env, check=False)
    except subprocess.TimeoutExpired as expired:
        raise TimeoutError(f"{' '.join(argv)} took longer than {limit_s:g} s") from expired
    if check and done.returncode:
        raise LabError(f"{' '.join(argv)} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done


def ip(*lines: str, inside: int | None = None) -> None:
    """Many ``ip`` commands in one process, in order; ``inside``: in the network namespace of this process."""
    enter = () if inside is None else ("nsenter", "--target", str(inside), "--net")
    run([*enter, "ip", "-batch", "-"], stdin="\n".join(lines) + "\n")
