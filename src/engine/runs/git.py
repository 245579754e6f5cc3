"""The state of the git repository that a program lies in: its commit, and what has been changed since."""

from __future__ import annotations

import os
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

DIFF_BYTES = 1024 * 1024  # of the changes; more is cut off
PATIENCE_S = 10.0  # for each command of git: a repository may be large, or its disk slow
_GIT = ("git", "-c", "core.fsmonitor=false", "--no-pager")
_DIFF = ("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv")


@dataclass(frozen=True, slots=True)
class GitState:
    """``diff``: the changes of the files that git knows, as `git apply` takes them; ``cut``: it is not all of them."""

    folder: str
    commit: str
    branch: str  # empty: none
    diff: bytes
    cut: bool


def git_state(folder: Path) -> GitState | None:
    """Return the state of the repository around ``folder``; None: there is none, or no git, or no commit yet."""
    try:
        told = _output(folder, "rev-parse", "--show-toplevel", "HEAD", "--abbrev-ref", "HEAD")
        top, commit, branch = told.decode(errors="surrogateescape").splitlines()
        diff = _output(Path(top), *_DIFF)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return GitState(top, commit, "" if branch == "HEAD" else branch, diff[:DIFF_BYTES], len(diff) > DIFF_BYTES)


def _output(folder: Path, *arguments: str) -> bytes:
    """Return what a command of git writes, or a little more than `DIFF_BYTES` of it.

    Raises:
        OSError, SubprocessError: it cannot be run, or it failed, or took too long.
    """
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}  # it changes nothing
    command = [*_GIT, "-C", str(folder), *arguments]
    with subprocess.Popen(  # noqa: S603  the words are ours
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
    ) as process:
        assert process.stdout is not None
        limit = threading.Timer(PATIENCE_S, process.kill)
        limit.daemon = True
        limit.start()
        try:
            output = process.stdout.read(DIFF_BYTES + 1)
            if len(output) > DIFF_BYTES:
                process.kill()
                return output
        finally:
            limit.cancel()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return output
