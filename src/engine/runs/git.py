"""The state of the git repository that contains a program: its commit, and the changes since that commit."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

from ...lazy_dataclass import dataclass

DIFF_BYTES = 1024 * 1024  # most bytes of the diff that are kept
PATIENCE_S = 10.0  # time limit of each git command, in seconds: a repository may be large, or its disk slow
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "diff.relative=false", "--no-pager")
_STATE = ("rev-parse", "--show-toplevel", "HEAD", "--abbrev-ref", "HEAD")
_DIFF = ("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv")


@dataclass(frozen=True, slots=True)
class GitState:
    """The state of a git repository.

    ``diff``: the changes of tracked files, for `git apply`. ``cut``: True: the diff was too long, and is incomplete.
    """

    folder: str
    commit: str
    branch: str  # "": HEAD is detached
    diff: bytes
    cut: bool


def git_state(folder: Path) -> GitState | None:
    """Return the state of the git repository that contains ``folder``; None: no repository, no git, or no commit yet.

    Both git commands run at the same time, because the end of a run waits for them.
    """
    try:
        with _Command(folder, *_STATE) as state, _Command(folder, *_DIFF) as changes:
            state_output, diff = state.output(), changes.output()
        top, commit, branch = state_output.decode(errors="surrogateescape").splitlines()
    except (OSError, ValueError, RuntimeError, subprocess.SubprocessError):
        return None
    return GitState(top, commit, "" if branch == "HEAD" else branch, diff[:DIFF_BYTES], len(diff) > DIFF_BYTES)


class _Command:
    """A running git command. The end of the ``with`` block kills it.

    Raises:
        OSError: git cannot be run.
        RuntimeError: The system can start no further thread, which the time limit needs.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        # git takes no locks, so that it does not write to the repository
        env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        self._process = subprocess.Popen(  # noqa: S603  fixed arguments
            [*_GIT, "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
        )
        self._limit = threading.Timer(PATIENCE_S, self._process.kill)
        self._limit.daemon = True
        try:
            self._limit.start()
        except RuntimeError:
            self.__exit__()
            raise

    def __enter__(self) -> _Command:
        return self

    def __exit__(self, *_: object) -> None:
        self._limit.cancel()
        if self._process.returncode is None:
            self._process.kill()
        with self._process:
            pass

    def output(self) -> bytes:
        """Return the command's output. If it is longer than `DIFF_BYTES`, the end is missing.

        Raises:
            SubprocessError: The command failed, or took too long.
        """
        assert self._process.stdout is not None
        output = self._process.stdout.read(DIFF_BYTES + 1)
        if len(output) <= DIFF_BYTES and self._process.wait():
            raise subprocess.CalledProcessError(self._process.returncode, self._process.args)
        return output
