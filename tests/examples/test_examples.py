"""Every example runs as a user would run it, in bounded time, and says what it promises to say."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from outrider import BootstrapError

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

EXAMPLES = Path(__file__).parents[2] / "examples"
TIME_LIMIT_S = 180

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
    "04_streams": [
        r"collatz: \[6, 3, 10, 5, 16, 8, 4, 2\]",
        r"on two nodes: \[4, 2\] \[4, 2\]",
        r"in a group: \[2\] 4",
        r"mean so far: 1\.5\nmean so far: 2\.0\n$",
    ],
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
    "08_grid_search": [
        r"9 candidates, 4 folds each, on 4 nodes",
        r"tasks finished: [1-9]",
        r"best: {'svc__C': 10, 'svc__gamma': 0\.0",
        r"held-out scans: 9\d",
    ],
    "07_errors": [
        r"raised there: ZeroDivisionError\('division by zero'\)",
        r"raised by 2 ranks",
        r"too slow: .+",
        r"killed: .+",
        r"retried: attempt 2 worked",
    ],
    "09_jax": [
        r"step 100: loss 0\.\d+\n",
        r"on 2 devices: (9\d|100)\.\d% right, loss 1\.1\d+ to 0\.0\d+",
        r"every rank has the same: True\n$",
    ],
    "10_keras": [r"accuracy: \d+% after one epoch, (9[5-9]|100)% at the end", r"one model: True\n$"],
    "12_resume": [
        r"generation 2 goes on after epoch 10\n",
        r"lost after epoch 12, went on after epoch 10: 2 epochs were done twice",
        r"undisturbed: +9[5-9]\.",
        r"disturbed: +9[5-9]\..*further apart than \de-",
    ],
    "11_trainer": [
        r"Trainer: distributed, 2 ranks",
        r"loss: [1-4]\.\d\d to 0\.\d\d",
        r"counts: \[3, 4, 5, 6, 7, 8, 9, 10\], on every rank: True\n$",
    ],
}

SAYS["14_inference"] = [
    r"the model is loaded\n(.|\n)*50 batches, 9\d\.\d% right",
    r"^(?!(.|\n)*(the model is loaded(.|\n)*){3})",  # on each of two nodes, once
]

SAYS["13_preemptions"] = [
    r"4 faults, 4 nodes lost, [2-5] generations",
    r"faults: .* of rank 0",
    r"done again: +\[\d+",
    r"undisturbed: +(9\d\.\d\d)%.*\ndisturbed: +\1%",
    r"picture: +\S+13_preemptions\.png",
    r"report: +outrider report 13_preemptions",
]

SAYS["15_by_load"] = [
    # On a busy computer the first node may have done some of them before the others are asked for.
    r"0 -> 1: \d tasks? waits?\n1 -> [2-4]: \d tasks? waits?\n(.*\n)*frames: 5\n(.*\n)*\d -> 0: no work for 1 s"
]

ELSEWHERE = ["aws_spot"]  # on machines of a cloud: tests/lab/test_aws_training.py runs it on one

NIGHTLY = [
    "02_digits_ddp",  # 17 s of a core; CI runs it by `make demo`, and it fails where it has not learnt what it should
    "08_grid_search",  # 10 s of a core; guides/joblib.md has a smaller one, which CI runs
    "13_preemptions",  # 45 s of both cores; 12_resume and tests/testing/fault_injection lose ranks for each change
]
NEEDS = {"09_jax": "jax", "10_keras": "keras", "11_trainer": "transformers"}  # what `make test-frameworks` installs


def numbered() -> list[str]:
    return sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in ELSEWHERE)


def examples() -> Iterator[ParameterSet]:
    for name in numbered():
        if name in NIGHTLY:
            yield pytest.param(name, marks=pytest.mark.nightly)
        elif (needs := NEEDS.get(name)) is None:
            yield pytest.param(name)
        else:
            absent = pytest.mark.skipif(find_spec(needs) is None, reason=f"{needs} is there in make test-frameworks")
            yield pytest.param(name, marks=[pytest.mark.frameworks, absent])


@pytest.mark.parametrize("name", list(examples()))
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


def test_the_example_for_aws_says_that_its_image_has_another_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(main: object) -> None:
        raise BootstrapError("its Python is 3.9.1, and this program's is 3.11", phase="python")

    monkeypatch.setattr(anyio, "run", refused)
    with pytest.raises(SystemExit, match=r"Python is 3\.9\.1.*\nRun this example with the Python that its image has"):
        runpy.run_path(str(EXAMPLES / "aws_spot.py"), run_name="__main__")


def test_examples_are_numbered_without_a_gap() -> None:
    names = numbered()
    assert [name[:3] for name in names] == [f"{number:02}_" for number in range(1, len(names) + 1)]
    assert all((EXAMPLES / f"{name}.py").exists() for name in ELSEWHERE)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_example_fits_a_screen(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 105
