"""What tasks print is seen wherever people look: in an application that logs, in a test, in a test's report."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path


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


def test_a_test_reads_what_tasks_print_and_its_report_shows_it(tmp_path: Path) -> None:
    tests = """
        import pytest
        from outrider import Local, Pool, compute

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
