"""One run of the installer. It reports to the client, runs commands, and ends these commands when it ends."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from outrider.engine.node import process

from . import protocol

TAIL_LINES = 40
LINE_CHARACTERS = 500
_KEPT_LINES = 10_000
# seconds to wait after SIGTERM: a process of root ends only if the sudo that started it gets SIGTERM and passes it on
_GRACE_S = 2.0
_ANSWERED_S = 30.0  # maximum seconds for a command that only prints information
# Seconds to wait for the last output of a command that has ended. If the command left a process in the background, that
# process may keep the pipe open.
_TRAILING_S = 1.0


class Failed(Exception):
    """The error for a failed phase of the bootstrap. ``log``: the last lines of output of the failed command."""

    def __init__(
        self, reason: str, *, command: str = "", exit_status: int | None = None, log: Sequence[str] = (), hint: str = ""
    ) -> None:
        super().__init__(reason)
        self.reason, self.command, self.exit_status, self.log, self.hint = reason, command, exit_status, log, hint


class Installation:
    """One run of the installer. ``out``: the file descriptor for frames to the client; nothing else may write to it."""

    def __init__(self, out: int) -> None:
        self._out = out
        # reentrant, because a signal handler may send a frame while this thread is sending one
        self._sending = threading.RLock()
        self._secrets: list[str] = []
        self._over = False
        self.phase = "probe"
        self.scratch: list[Path] = []  # folders to remove if the bootstrap fails
        # sockets to shut down if the bootstrap fails; the processes at their other ends then exit
        self.held: list[socket.socket] = []
        process.adopt_orphans()  # so that background processes left by commands can be ended, too

    def hide(self, secrets: Sequence[str]) -> None:
        self._secrets = sorted(secrets, key=len, reverse=True)

    def send(self, kind: str, **facts: Any) -> None:
        with self._sending:
            if not self._over:
                self._over = kind in ("result", "failed")
                protocol.send(self._out, kind, **facts)

    def fail(self, failure: Failed, *, timed_out: bool = False) -> None:
        self.send(
            "failed",
            phase=self.phase,
            reason=self._shown(failure.reason),
            command=self._shown(failure.command),
            exit_status=failure.exit_status,
            log=[self._shown(line) for line in failure.log],
            hint=failure.hint,
            timed_out=timed_out,
        )

    @contextmanager
    def during(self, name: str, text: str = "") -> Iterator[None]:
        self.phase, began = name, time.monotonic()
        self.send("phase", name=name, state="started", text=text, seconds=0.0)
        yield
        self.send("phase", name=name, state="finished", text="", seconds=round(time.monotonic() - began, 3))

    def line(self, text: str) -> None:
        self.send("phase", name=self.phase, state="line", text=self._shown(text), seconds=0.0)

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: bytes = b"",
        shown: str = "",
        pass_on: Sequence[socket.socket] = (),
    ) -> list[str]:
        """Run a command. Report its output line by line to the client, and return the lines.

        ``pass_on``: sockets that the command inherits. Raises Failed if the command fails.
        """
        command = shown or shlex.join(argv)
        try:
            running = subprocess.Popen(  # noqa: S603 - the user's and Outrider's commands
                argv,
                env=None if env is None else dict(env),
                cwd=cwd,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[each.fileno() for each in pass_on],
            )
        except OSError as error:
            raise Failed(f"{argv[0]} cannot be run: {error.strerror}", command=command) from error
        lines: deque[str] = deque(maxlen=_KEPT_LINES)
        listening = threading.Thread(target=self._listen, args=(running, lines), daemon=True)
        listening.start()
        if running.stdin is not None:
            # the command has ended without reading: its exit status shows whether it failed
            with suppress(BrokenPipeError):
                running.stdin.write(stdin)
                running.stdin.close()
        status = running.wait()
        listening.join(_TRAILING_S)
        if status != 0:
            how = f"exit status {status}" if status > 0 else f"signal {signal.Signals(-status).name}"
            line = command.splitlines()[0]
            short = line if len(line) <= 120 else f"{line[:117]}..."
            log = list(lines)[-TAIL_LINES:]
            raise Failed(f"{short} ended with {how}", command=command, exit_status=status, log=log)
        return list(lines)

    def _listen(self, running: subprocess.Popen[bytes], lines: deque[str]) -> None:
        """Collect and report the output of a command.

        If a line was overwritten, as by a progress bar, only its last state is used.
        """
        assert running.stdout is not None
        with running.stdout as output:
            for raw in output:
                text = raw.decode(errors="replace").rstrip().rpartition("\r")[2]
                if text:
                    lines.append(text)
                    self.line(text)

    def end(self, reason: str, *, timed_out: bool = False) -> None:
        """End this process, because the client is gone or the time is over. If the result was already sent, do nothing.

        This works even while another thread is blocked in writing to a dead connection.
        """
        os.set_blocking(self._out, False)
        if self._sending.acquire(timeout=_GRACE_S):
            try:
                if self._over:
                    os.set_blocking(self._out, True)
                    return
                with suppress(OSError):
                    self.fail(Failed(reason), timed_out=timed_out)
            finally:
                self._sending.release()
        try:
            self.clear()
        finally:  # an error in `clear` would end only this thread, and the main thread would wait forever
            os._exit(1)

    @contextmanager
    def incomplete(self, folder: Path) -> Iterator[None]:
        """Remove ``folder`` at the end of the ``with`` block, even after an error.

        If the block renames it, nothing is removed.
        """
        self.scratch.append(folder)
        try:
            yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            self.scratch.remove(folder)

    def clear(self) -> None:
        """End all processes that this installation started, and remove unfinished folders."""
        me = os.getpid()
        for held in self.held:
            with suppress(OSError):
                # unlike `close`, this also wakes up a process that is reading from the socket
                held.shutdown(socket.SHUT_RDWR)
        for pid in process.descendants(me):
            with suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_S
        # wait only for a limited time, because processes of root may not end
        while (left := _alive(me)) and time.monotonic() < deadline + _GRACE_S:
            for pid in left if time.monotonic() >= deadline else ():
                process.kill_tree(pid)
            time.sleep(0.02)
        for folder in self.scratch:
            shutil.rmtree(folder, ignore_errors=True)

    def _shown(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "****")
        return text if len(text) <= LINE_CHARACTERS else f"{text[: LINE_CHARACTERS - 3]}..."


def try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def ask(argv: Sequence[str], *, stdin: int = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
    """Run a command that only prints information. Any exit status is accepted."""
    command = shlex.join(argv)
    try:
        return subprocess.run(  # noqa: S603
            argv,
            stdin=stdin,
            capture_output=True,
            timeout=_ANSWERED_S,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise Failed(f"{argv[0]} cannot be run: {error.strerror}", command=command) from error
    except subprocess.TimeoutExpired as error:
        reason = f"{command} did not end within {_ANSWERED_S:g} s"
        raise Failed(reason, command=command, hint="run it there by hand to see what it waits for") from error


def become_root(what: str, otherwise: str) -> list[str]:
    """Return the beginning of a command line that runs a command as root: with sudo, or empty if this user is root.

    ``what``: the action, for errors. ``otherwise``: what the user can do instead, for errors.
    """
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") is None:
        raise Failed(f"{what} needs root, and there is no sudo", hint=f"log in as root, or {otherwise}")
    result = ask(["sudo", "-n", "true"])
    if result.returncode != 0:
        raise Failed(
            f"{what} needs root, and sudo asks for a password",
            command="sudo -n true",
            exit_status=result.returncode,
            log=result.stderr.splitlines()[-3:],
            hint=f"allow this user sudo without a password, or {otherwise}",
        )
    return ["sudo", "-n"]


def _alive(pid: int) -> list[int]:
    return [child for child in process.children(pid) if not _is_zombie(child)]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return True
