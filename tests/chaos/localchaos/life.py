"""One life from outside: starts its client, deals the faults, ends it, and looks at what is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from outrider.providers.local.processes import mount_small, unmount
from outrider.providers.local.state import sweep
from outrider.testing.fault_injection import processes

from .journal import Reader
from .plan import CLIENT_LIMIT, INTERRUPTS, OPENING, SIGNALS, Life, Strike
from .referee import Found
from .strikes import Nobody, Undo, strike
from .who import MARK, Seen, everything, marked

HERE = Path(__file__).parent
LOOK_S = 0.05
OPEN_S, CLOSE_S, LEFT_S = 120.0, 90.0, 60.0  # generous: other programs may have the processor
CHECKPOINTS_MIB = 2
INTERRUPT_GAP_S = 0.02


class Alive:
    """A life that goes on. ``log``: what was done to it, in order."""

    def __init__(self, life: Life, folder: Path) -> None:
        self.life, self.folder = life, folder
        self.mark = folder.name
        self.journal = Reader(folder / "journal")
        self.log: list[tuple[float, str]] = []
        self.struck = {CLIENT_LIMIT} if life.limit else set[str]()
        self._undo: list[tuple[float, str, Undo]] = []
        self._ended_at: float | None = None

    def run(self) -> Found:
        with self._folders(), self._client() as client:
            ready_at = self._wait_for(client, "opening" if self.life.ending == OPENING else "ready", OPEN_S)
            if ready_at is not None:
                self._strike_and_end(client, ready_at)
            exited = self._wait_for_exit(client, self.life.hang_s + CLOSE_S)
            if exited is None:
                self._examine(client.pid)
            self._undo_all()
            return self._found(client, exited)

    @contextmanager
    def _folders(self) -> Iterator[None]:
        for name in ("state", "tmp", "home", "marks", "checkpoints"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "life.json").write_text(json.dumps(asdict(self.life)))
        small = "full-checkpoints" in self.life.faults and os.geteuid() == 0
        if small:
            mount_small(self.folder / "checkpoints", CHECKPOINTS_MIB)
        try:
            yield
        finally:
            if small:
                unmount(self.folder / "checkpoints")

    @contextmanager
    def _client(self) -> Iterator[subprocess.Popen[bytes]]:
        environment = {
            **os.environ,
            MARK: self.mark,
            "HOME": str(self.folder / "home"),
            "OUTRIDER_STATE": str(self.folder / "state"),
            "TMPDIR": str(self.folder / "tmp"),
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        }
        command = [sys.executable, *(["-X", "dev"] if self.life.strict else []), "-m", "localchaos.driver"]
        with (self.folder / "stdout").open("wb") as out, (self.folder / "stderr").open("wb") as err:
            client = subprocess.Popen(
                [*command, str(self.folder)], env=environment, stdout=out, stderr=err, start_new_session=True
            )
        try:
            yield client
        finally:
            self._undo_all()
            client.kill()
            client.wait()
            for seen in marked(self.mark):
                processes.send(seen.process, signal.SIGKILL)

    # --- in order of time -------------------------------------------------------------------------------------------

    def _strike_and_end(self, client: subprocess.Popen[bytes], ready_at: float) -> None:
        todo: list[tuple[float, Strike | None]] = [
            (ready_at + each.at_s, each) for each in self.life.strikes if each.fault != "stall"
        ]
        if self.life.ending in (*SIGNALS, INTERRUPTS, OPENING):
            todo.append((ready_at + self.life.end_s, None))
        todo.sort(key=lambda each: each[0])
        until = ready_at + self.life.seconds + 2 * self.life.hang_s + self.life.pauses_s
        while self._goes_on(client) and time.monotonic() < until and self._ended_at is None:
            now = time.monotonic()
            self._undo_due(now)
            while todo and todo[0][0] <= now:
                _, fault = todo.pop(0)
                if fault is None:
                    self._end(client)
                    break
                self._strike(fault, client.pid)
            time.sleep(LOOK_S)

    def _strike(self, fault: Strike, client: int) -> None:
        try:
            whom, undo = strike(fault, client, self.folder)
        except Nobody as error:
            self._say(f"{fault.fault}: no {error} there")
            return
        self.struck.add(fault.fault)
        self._say(f"{fault.fault}: {whom}" + (f" for {fault.seconds:.1f} s" if fault.seconds else ""))
        if fault.seconds:
            self._undo.append((time.monotonic() + fault.seconds, fault.fault, undo))

    def _end(self, client: subprocess.Popen[bytes]) -> None:
        """What stands still stays so: also such pools have to end."""
        name = SIGNALS.get(self.life.ending, "INT" if self.life.ending == INTERRUPTS else "TERM")
        number, times = signal.Signals[f"SIG{name}"], 3 if self.life.ending == INTERRUPTS else 1
        self._ended_at = time.monotonic()
        for _ in range(times):
            client.send_signal(number)
            time.sleep(INTERRUPT_GAP_S if times > 1 else 0)
        self._say(f"SIG{name} for the client" + (f", {times} times" if times > 1 else ""))

    def _undo_due(self, now: float) -> None:
        for each in [each for each in self._undo if each[0] <= now]:
            self._undo.remove(each)
            each[2]()
            self._say(f"{each[1]}: undone")

    def _undo_all(self) -> None:
        self._undo_due(float("inf"))

    def _wait_for(self, client: subprocess.Popen[bytes], what: str, within_s: float) -> float | None:
        until = time.monotonic() + within_s
        while time.monotonic() < until and client.poll() is None:
            if (entry := self.journal.find(what)) is not None:
                at: float = entry["at"]
                return at
            time.sleep(LOOK_S)
        return None

    def _goes_on(self, client: subprocess.Popen[bytes]) -> bool:
        return client.poll() is None and self.journal.find("hang") is None

    def _wait_for_exit(self, client: subprocess.Popen[bytes], within_s: float) -> int | None:
        """Shorter where it has said all that it has to say."""
        until = time.monotonic() + within_s
        while self._goes_on(client) and time.monotonic() < until:
            self._undo_due(time.monotonic())
            if (said := self.journal.find("left")) is not None:
                until = min(until, said["at"] + LEFT_S)
            time.sleep(LOOK_S)
        return client.poll()

    # --- afterwards -------------------------------------------------------------------------------------------------

    def _found(self, client: subprocess.Popen[bytes], exited: int | None) -> Found:
        left = self._left_processes() if exited is not None else []
        for seen in left:
            self._say(f"left: {_described(seen)}")
        if exited is not None and not left and (SIGNALS.get(self.life.ending) == "KILL" or self.supervisor_was_hit):
            sweep(self.folder / "state" / "local")  # as the next pool does
        if self.journal.find("stall") is not None:
            self.struck.add("stall")
        return Found(
            exit=exited,
            struck=frozenset(self.struck),
            ended_at=self._ended_at,
            marks={file.name: len(file.read_text().split()) for file in (self.folder / "marks").glob("once-*")},
            processes=[_described(seen) for seen in left],
            files=self._left_files() if exited is not None and not left else [],
            stderr=(self.folder / "stderr").read_text(errors="replace"),
        )

    @property
    def supervisor_was_hit(self) -> bool:
        return any(fault.endswith(("-supervisor", "-watchdog")) for fault in self.struck)

    def _left_processes(self) -> list[Seen]:
        """But for the child that the program itself forked: that goes last, and nothing has to wait for it."""
        forked = self.journal.find("forked")
        own = {forked["pid"]} if forked is not None else set[int]()
        until = time.monotonic() + LEFT_S
        while True:
            left = [seen for seen in marked(self.mark) if seen.pid not in own]
            if not left or time.monotonic() > until:
                break
            time.sleep(LOOK_S)
        for pid in own:
            if (seen := everything().get(pid)) is not None and seen in marked(self.mark):
                processes.send(seen.process, signal.SIGKILL)
        return left

    def _left_files(self) -> list[str]:
        return [
            str(path.relative_to(self.folder))
            for name in ("state/local", "tmp")
            for path in sorted((self.folder / name).glob("*"))
        ]

    def _examine(self, client: int) -> None:
        """It hangs: keep what tells why, before it is ended."""
        everyone = marked(self.mark)
        for seen in everyone:
            self._say(f"there: {_described(seen)}")
        os.kill(client, signal.SIGUSR2)  # the stacks of its threads, into the file of that name
        time.sleep(1.0)
        shutil.copytree(self.folder / "state", self.folder / "state-then", ignore=_no_sockets, dirs_exist_ok=True)

    def _say(self, text: str) -> None:
        self.log.append((time.monotonic(), text))


def _no_sockets(directory: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if not (Path(directory) / name).is_dir() and not (Path(directory) / name).is_file()]


def _described(seen: Seen) -> str:
    return f"{seen.pid} ({seen.state}, parent {seen.parent}, group {seen.group}) {seen.command[:100]}"
