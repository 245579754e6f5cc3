"""A script, or a command, as a rank's process runs it: as if nobody had called it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import json, sys
from outrider.engine.scripts.program import Place, ProgramFailed, run_command, run_script
folder, root, kind, *words = json.loads(sys.argv[1])
try:
    {"script": run_script, "command": run_command}[kind](Place(folder, root), *words)
except ProgramFailed as failed:
    print("FAILED", failed.code, failed)
else:
    print("WELL")
"""


def run(folder: Path, kind: str, *words: str, root: str | None = None, path: str = "") -> tuple[str, str]:
    """Run it in a process as a rank's; return what it prints on stdout and on stderr."""
    given = json.dumps([str(folder), root, kind, *words])
    done = subprocess.run(
        [sys.executable, "-c", RUN, given],
        cwd=folder if root is None else folder / "work",
        env=os.environ | {"OUTRIDER_PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout, done.stderr


def script(folder: Path, text: str) -> str:
    (folder / "train.py").write_text(text)
    return "train.py"


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("pass", "WELL"),
        ("import sys; sys.exit()", "WELL"),
        ("import sys; sys.exit(3)", "FAILED 3 it ended with exit code 3"),
        ("import sys; sys.exit(-1)", "FAILED 255 it ended with exit code 255"),
        ("import sys; sys.exit('no')", "FAILED 1 it ended with exit code 1"),
        ("raise LookupError('no such shard')", "FAILED 1 LookupError: no such shard"),
        ("raise KeyboardInterrupt", "FAILED 130 KeyboardInterrupt"),
        ("def f(:", "FAILED 1 SyntaxError: invalid syntax"),
    ],
)
def test_a_script_ends_as_python_would_end_it(tmp_path: Path, text: str, end: str) -> None:
    out, _ = run(tmp_path, "script", script(tmp_path, text))
    assert out.strip().replace(f"{tmp_path}/", "") == end


def test_its_traceback_is_that_of_python(tmp_path: Path) -> None:
    script(tmp_path, "def f():\n    raise LookupError('no')\nf()\n")
    path = tmp_path / "train.py"
    expected = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False).stderr
    assert run(tmp_path, "script", "train.py")[1] == expected


def test_it_is_main_with_its_arguments_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("word = 'helped'")
    script(
        tmp_path,
        "import atexit, os, sys, threading, helper\n"
        "atexit.register(print, 'at exit')\n"
        "threading.Timer(0.1, print, ['thread']).start()\n"
        "print(__name__, sys.modules['__main__'].__file__, sys.argv[1:], os.getcwd(), helper.word)\n",
    )
    out, _ = run(tmp_path, "script", "train.py", "--lr", "1")
    path = tmp_path / "train.py"
    first, *rest = out.splitlines()
    assert first == f"__main__ {path} ['--lr', '1'] {tmp_path} helped"
    assert rest == ["thread", "at exit", "WELL"]


def test_on_another_computer_it_reads_its_files_and_writes_beside_them(tmp_path: Path) -> None:
    project, work = tmp_path / "tree" / "project", tmp_path / "work"
    (project / "data").mkdir(parents=True)
    work.mkdir()
    (project / "data" / "x.txt").write_text("its data")
    script(project, "from pathlib import Path\nprint(Path('data/x.txt').read_text())\nPath('out').write_text('')\n")
    for _ in range(2):  # as for two ranks of a node
        out, _ = run(tmp_path, "script", "train.py", root="project", path=f"/none:{tmp_path / 'tree'}")
        assert out.splitlines() == ["its data", "WELL"]
    assert (work / "out").exists()
    assert not (project / "out").exists()


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (["sh", "-c", "exit 0"], "WELL"),
        (["sh", "-c", "exit 7"], "FAILED 7 it ended with exit code 7"),
        (["sh", "-c", "kill -9 $$"], "FAILED 137 it was killed by signal 9"),
        (["no-such-program"], "FAILED 127 no-such-program cannot be run: No such file or directory"),
        (["./train.py"], "FAILED 126 ./train.py cannot be run: Permission denied"),
    ],
)
def test_a_command_ends_as_in_a_shell(tmp_path: Path, words: list[str], end: str) -> None:
    script(tmp_path, "")
    assert run(tmp_path, "command", *words)[0].strip() == end


def test_a_commands_python_is_the_ranks_own(tmp_path: Path) -> None:
    out, _ = run(tmp_path, "command", "python", "-c", "import sys; print(sys.prefix)")
    assert out.splitlines() == [sys.prefix, "WELL"]
