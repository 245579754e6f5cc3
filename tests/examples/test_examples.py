"""Every example runs as a user would run it, in bounded time, and says what it promises to say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TIME_LIMIT_S = 90

SAYS = {
    "01_quickstart": [
        r"one node: +\d[\d.e-]+\n",
        r"all, by rank: +\[(\d[\d.e-]+(, )?){4}\]",
        r"together: +\(9, 16\)",
        r"all of a map: +332833500",
        r"one by one: +36\none by one: +49\none by one: +64",
        r"as produced: +row 0 from node \d\nas produced: +row 1 from node \d",
        r"the job: +25",
    ],
    "02_digits_ddp": [r"four nodes: +9[5-9]\.", r"one process: +9[3-9]\.", r"picture: +\S+02_digits_ddp\.png"],
    "03_map": [r"pi is about 3\.1\d+\n.*pi is about 3\.1"],
    "04_streams": [r"collatz: \[6, 3, 10, 5, 16, 8, 4, 2\]", r"mean so far: 1\.5\nmean so far: 2\.0\n$"],
    "05_sync": [
        r"one node: 45",
        r"rank 0 of 4 has \[0, 4, 8\]",
        r"each rank: \[12, 15, 8, 10\] in all: 45",
        r"together: \(9, 16\)",
        r"gathered: \(25, 36\)",
        r"a future: 49",
        r"without a pool: 45\n$",
    ],
    "06_service": [
        r"^'a pool in a service': 5 words, the longest is service\n",  # the first line of all: the pools print none
        r"node 0: ready\nnode 1: ready\ntasks finished: 3\n$",
    ],
    "07_errors": [
        r"raised there: ZeroDivisionError\('division by zero'\)",
        r"raised by 2 ranks",
        r"too slow: .+",
        r"killed: .+",
        r"retried: attempt 2 worked",
    ],
}


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_example_runs(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    for pattern in SAYS[name]:
        assert re.search(pattern, done.stdout), f"{pattern!r} not in:\n{done.stdout}"
    for picture in re.findall(r"picture: +(\S+)", done.stdout):
        assert Path(picture).read_bytes().startswith(b"\x89PNG")


def test_examples_are_numbered_without_a_gap() -> None:
    names = sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert [name[:3] for name in names] == [f"{number:02}_" for number in range(1, len(names) + 1)]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_example_fits_a_screen(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 105
