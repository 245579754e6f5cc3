"""The plugin in a pytest of its own, as users have it: what passes, what fails and why, and what is left to read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLUGIN = "outrider.testing.fault_injection.pytest_plugin"

COUNTS = """
import pytest
from outrider import compute, checkpoint, instance_info
from outrider.testing import Freeze, step

@compute(on_loss="restart")
def resumes(steps):
    with checkpoint("count", every=5) as saved:
        done, total = saved.load()
        total = total or 0
        for number in range(done + 1, steps + 1):
            total += number
            saved.save(number, total)
    return total

@compute(on_loss="restart")
def forgets(steps):
    for _ in range(steps):
        step()
    return instance_info().generation
"""


def run(folder: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(COUNTS + tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-q", "--strict-markers", "-rA", "--junitxml=junit.xml"]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        [*command, *options], cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )


def test_a_function_is_tested_against_its_undisturbed_self(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
@pytest.mark.preempt(rank=1, at_step=12)
def test_resumes(chaos):
    assert chaos.check(resumes(20), nodes=2) == [210, 210]

@pytest.mark.preempt(rank=0, at_step=3)
def test_forgets(chaos):
    chaos.check(forgets(5), nodes=1)

@pytest.mark.preempt(rank=0, at_step=50)
def test_too_short(chaos):
    chaos.check(forgets(5), nodes=1)

@pytest.mark.preempt(at_step=3, notice=60)
def test_own_pool(chaos):
    with chaos.pool(nodes=1) as pool:
        assert pool.run(forgets(5)) == 0
        assert [strike.kind for strike in pool.chaos.strikes] == ["preempt"]
""",
        "--outrider-report=reports",
    )
    assert "2 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert re.search(
        r"E +AssertionError: rank 0 gives another answer: 2, undisturbed 1 \(1 fault, 1 node lost, 2 gen", done.stdout
    )
    assert re.search(r"Kill\(rank=0, at_step=50\) did not happen: of its steps, rank 0 made 5", done.stdout)
    told = {
        case.attrib["name"]: {each.attrib["name"]: each.attrib["value"] for each in case.iter("property")}
        for case in ET.parse(tmp_path / "junit.xml").iter("testcase")
    }
    assert told["test_resumes"]["outrider.faults"] == "Kill(rank=1, at_step=12) on rank 1"
    assert told["test_resumes"]["outrider.generations"] == "2"
    assert float(told["test_resumes"]["outrider.recovery_s"]) > 0
    page = tmp_path / told["test_resumes"]["outrider.report"]
    assert "<svg" in page.read_text()
    assert page.with_suffix(".json").exists()


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        ("rank=0", "at_step"),
        ("at_step=0", "at least 1"),
        ("at_step=3, fault=5", "fault takes one such as"),
        ("at_step=3, fault=Freeze(1), notice=2", "notice is for a machine that is taken"),
        ("at_stop=3", "at_stop"),
        ("step=5", "did you mean 'at_step'?"),
    ],
)
def test_invalid_mark_is_an_error(mark: str, says: str, tmp_path: Path) -> None:
    done = run(tmp_path, f"@pytest.mark.preempt({mark})\ndef test_it(chaos):\n    pass\n")
    assert done.returncode != 0
    assert says in done.stdout + done.stderr


def test_a_mark_without_the_fixture_and_a_fixture_without_a_mark_are_errors(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "@pytest.mark.preempt(at_step=3)\ndef test_a():\n    pass\ndef test_b(chaos):\n    chaos.check(forgets(1))\n",
    )
    assert "is for tests that use the `chaos` fixture" in done.stdout + done.stderr
    done = run(tmp_path, "def test_b(chaos):\n    chaos.check(forgets(1))\n")
    assert "has no faults: mark the test" in done.stdout


def test_it_is_registered_and_brings_nothing_heavy() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert points == {"outrider": PLUGIN}
    assert import_module(points["outrider"]).chaos
    code = f"import sys, {PLUGIN}; print([each for each in sys.modules if each.split('.')[0] in ('asyncssh', 'torch')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
