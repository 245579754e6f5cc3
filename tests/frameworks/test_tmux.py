"""A progress bar in a task on a real terminal, tmux's; and in plain output."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

STEPS = 5
PROGRAM = """
    import os, time
    from outrider import Local, Pool, compute
    from outrider.engine.record.display import writer as sink

    sink.Writer.close.__defaults__ = (60.0,)  # else the last lines of a busy computer may be missing

    @compute
    def fit():
        from tqdm import tqdm
        for step in tqdm(range(STEPS), mininterval=0, ncols=40):
            while not os.path.exists(f"FOLDER/{step}"):
                time.sleep(0.01)

    with Pool(provider=Local(), name="train") as pool:
        fit() >> pool
"""


def program(folder: Path) -> Path:
    path = folder / "program.py"
    text = PROGRAM.replace("STEPS", str(STEPS)).replace("FOLDER", str(folder))
    path.write_text(textwrap.dedent(text))
    return path


class Terminal:
    """The server of a terminal, with one program on it.

    A shell writes down how the program has ended. tmux cannot be asked: while it tells utempter that a terminal has
    been closed, it has no handler of SIGCHLD, and a program that ends then is never seen to end (tmux's issue 311).
    """

    def __init__(self, folder: Path) -> None:
        settings = folder / "tmux.conf"
        settings.write_text("set-option -g remain-on-exit on\n")
        self._tmux = ["tmux", "-S", str(folder / "s"), "-f", str(settings)]
        self._exit_code = folder / "exit_code"

    def run(self, *command: str) -> None:
        noted = f"{shlex.join(command)}; echo $? >{shlex.quote(str(self._exit_code))}"
        self._call("new-session", "-d", "-x", "90", "-y", "30", "sh", "-c", noted)

    def exit_code(self) -> int:
        """Wait until the program has ended."""
        self.wait(lambda _: self._exit_code.exists() and self._exit_code.read_text().endswith("\n"))
        return int(self._exit_code.read_text())

    def lines(self) -> list[str]:
        """What is on it, with what has scrolled away, and without what tmux itself says where it sees the end."""
        shown = self._call("capture-pane", "-p", "-S", "-").splitlines()
        return [line for line in shown if line.strip() and not line.startswith("Pane is dead")]

    def wait(self, look: Callable[[list[str]], bool]) -> float:
        """Return after how many seconds ``look`` was true of what is on it."""
        began = time.monotonic()
        while not look(lines := self.lines()):
            assert time.monotonic() < began + 180, "\n".join(lines)
            time.sleep(0.02)
        return time.monotonic() - began

    def end(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, check=False)

    def _call(self, *arguments: str) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "TMUX"}
        ran = subprocess.run([*self._tmux, *arguments], capture_output=True, text=True, check=False, env=environment)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("there is no tmux on this computer: apt-get install tmux")
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.end()


def test_a_bar_moves_each_second_and_leaves_one_line(tmp_path: Path, terminal: Terminal) -> None:
    terminal.run(sys.executable, str(program(tmp_path)))
    seen_after_s = []
    for step in range(STEPS):
        took_s = terminal.wait(lambda lines, step=step: any(f"{step}/{STEPS}" in line for line in lines))  # type: ignore[misc]
        seen_after_s.append(took_s)
        (tmp_path / str(step)).touch()
    assert min(seen_after_s[1:]) < 1.0  # each took that long, on a computer that does nothing else
    terminal.wait(lambda lines: any(line.startswith("outrider train") for line in lines))
    assert terminal.exit_code() == 0
    bar, summary = terminal.lines()
    assert re.match(rf"\[node 0 · fit #1\] 100%\|.*{STEPS}/{STEPS}", bar)
    assert summary.startswith("outrider train · local · 1 task done")


def test_a_bar_leaves_one_line_in_plain_output(tmp_path: Path) -> None:
    for step in range(STEPS):
        (tmp_path / str(step)).touch()
    ran = subprocess.run([sys.executable, program(tmp_path)], capture_output=True, text=True, check=True, timeout=120)
    assert ran.stdout == ""
    bars = [line for line in ran.stderr.splitlines() if "|" in line]
    assert len(bars) == 1, ran.stderr
    assert bars[0].startswith("[node 0 · fit #1] 100%|")
