"""What tasks print is seen wherever people look: in an application that logs, a test and its report, on a terminal."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

from ..terminal import on_a_terminal, screen


def run(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=120, cwd=folder
    )


def test_an_application_that_logs_sees_each_line_once(tmp_path: Path) -> None:
    program = """
        import logging
        from outrider import Local, Pool, compute

        @compute
        def say(text):
            print(text)

        logging.basicConfig()
        with Pool(provider=Local()) as pool:
            say("one") >> pool  # at the level WARNING no record of it is made
            logging.getLogger().setLevel(logging.INFO)
            say("two") >> pool
    """
    done = run("-c", textwrap.dedent(program), folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "[node 0 · say #1] one\n"), done.stderr
    assert [line for line in done.stderr.splitlines() if "say" in line] == ["INFO:outrider.task:[node 0 · say #2] two"]


def test_a_task_of_a_scheduler_that_takes_over_logging_and_stdout_sees_each_line_once(tmp_path: Path) -> None:
    """As Airflow runs a task: the root's handlers are replaced by that of the task's log, and streams are loggers."""
    program = """
        import contextlib, io, logging
        from outrider import Local, Pool, compute
        from outrider.engine.record.display import writer as sink

        sink.PATIENCE_S = 60.0  # else what a busy computer's thread prints late is in no log any more

        class StreamLogWriter(io.TextIOBase):
            def __init__(self, logger, level):
                self.logger, self.level, self.begun = logger, level, ""

            def write(self, text):
                self.begun += text
                if self.begun.endswith("\\n"):
                    self.flush()

            def flush(self):
                begun, self.begun = self.begun.rstrip(), ""
                if begun:
                    self.logger.log(self.level, "%s", begun)

        @compute
        def say(text):
            print(text)

        handler = logging.FileHandler("task.log")
        task, root = logging.getLogger("airflow.task"), logging.getLogger()
        task.propagate = False
        task.setLevel(logging.INFO)
        task.addHandler(handler)
        root.handlers[:] = [handler]
        out, err = StreamLogWriter(task, logging.INFO), StreamLogWriter(task, logging.WARNING)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), Pool(provider=Local()) as pool:
            print("of the operator")
            root.setLevel(logging.INFO)
            say("logged") >> pool
            root.setLevel(logging.WARNING)
            say("printed") >> pool
    """
    done = run("-c", textwrap.dedent(program), folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    lines = (tmp_path / "task.log").read_text().splitlines()
    assert [line for line in lines if "say" in line or "operator" in line] == [
        "of the operator",
        "[node 0 · say #1] logged",
        "[node 0 · say #2] printed",
    ]


def test_a_test_reads_what_tasks_print_and_its_report_shows_it(tmp_path: Path) -> None:
    tests = """
        import pytest
        from outrider import Local, Pool, compute
        from outrider.engine.record.display import writer as sink

        sink.PATIENCE_S = 60.0  # a busy computer may keep the thread that prints for longer than the loop waits for it

        @pytest.fixture(scope="module")
        def pool():
            with Pool(provider=Local()) as pool:
                yield pool

        @compute
        def say(text):
            print(text)

        def test_reads(pool, capsys):
            say("for capsys") >> pool
            assert capsys.readouterr() == ("[node 0 · say #1] for capsys\\n", "")

        def test_fails(pool):
            say("for the report") >> pool
            assert False
    """
    file = tmp_path / "test_of_a_user.py"
    file.write_text(textwrap.dedent(tests))
    done = run("-m", "pytest", "-p", "no:cacheprovider", file, folder=tmp_path)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    _, report = done.stdout.split("Captured stdout call")
    assert report.splitlines()[1] == "[node 0 · say #2] for the report"


def test_a_progress_bar_moves_on_a_terminal_and_leaves_one_line(tmp_path: Path) -> None:
    """It goes on when the test has seen how far it is, so it is seen while it stands still."""
    program = """
        import os, sys, time
        from outrider import Local, Pool, compute

        @compute
        def fit():
            for step in range(1, 4):
                sys.stderr.write(f"\\r{step}/3")
                sys.stderr.flush()
                while not os.path.exists(f"TMP/{step}"):
                    time.sleep(0.01)
            sys.stderr.write("\\n")

        with Pool(provider=Local()) as pool:
            fit() >> pool
    """
    step = 1

    def look(seen: str) -> None:
        nonlocal step
        if f"{step}/3" in screen(seen)[-1]:
            (tmp_path / f"{step}").touch()
            step += 1

    seen = on_a_terminal(program.replace("TMP", str(tmp_path)), look)
    assert step == 4
    lines = [line for line in screen(seen) if line]
    assert lines[0] == "[node 0 · fit #1] 3/3"
    assert "local · 1 task done" in lines[1]
    assert len(lines) == 2


def test_each_item_that_fails_has_one_line_above_the_table() -> None:
    """With ``errors="return"``, where the caller raises nothing."""
    program = """
        from outrider import Local, Pool, compute

        @compute
        def check(n):
            if n % 3 == 0:
                raise ValueError(f"bad {n}")
            return n

        with Pool(provider=Local(), nodes=2) as pool:
            outcomes = list(pool.map(check, range(10), errors="return"))
            assert [each.index for each in outcomes if each.error] == [0, 3, 6, 9]
    """
    seen = on_a_terminal(program)
    lines = [line for line in screen(seen) if "failed on node" in line]
    assert len(lines) == 4, screen(seen)
    for line, n in zip(sorted(lines), (0, 3, 6, 9), strict=True):
        assert re.fullmatch(rf"outrider: (item {n} of )?check #\d+ failed on node [01]: ValueError: bad {n}", line)
