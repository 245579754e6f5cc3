"""A script whose call of `checkpoint` is certain to fail for lack of a place is found before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.engine.scripts.run import Program, needs_place, planned
from outrider.errors import SpecError

IMPORT = "from outrider import checkpoint\n"
MAIN = "if __name__ == '__main__':\n    main()\n"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (f"{IMPORT}saved = checkpoint('run')\n", 2),
        (f"{IMPORT}x = 1\nwith checkpoint('run', every=1) as saved:\n    pass\n", 3),
        ("import outrider\noutrider.checkpoint('run')\n", 2),
        ("import outrider as o\nsaved: object = o.checkpoint('run')\n", 2),
        ("from outrider import checkpoint as ck\nck('run')\n", 2),
        (f"{IMPORT}def main():\n    args = parse()\n    if args: print(1)\n    checkpoint('run')\n{MAIN}", 5),
        (f"{IMPORT}def opened():\n    return checkpoint('run')\ndef main():\n    opened()\n{MAIN}", 3),
        (f"{IMPORT}for each in range(3): print(each)\ncheckpoint('run')\n", 3),
    ],
)
def test_a_call_that_is_certain_to_run_is_found(source: str, line: int) -> None:
    assert needs_place(source, []) == line


@pytest.mark.parametrize(
    "source",
    [
        "def checkpoint(name): ...\ncheckpoint('run')\n",
        f"{IMPORT}checkpoint('run', root='ck')\n",
        f"{IMPORT}checkpoint('run', **options)\n",
        f"{IMPORT}if resume:\n    checkpoint('run')\n",
        f"{IMPORT}try:\n    checkpoint('run')\nexcept Exception: pass\n",
        f"{IMPORT}for each in []:\n    checkpoint('run')\n",
        f"{IMPORT}with suppress(Exception):\n    checkpoint('run')\n",
        f"{IMPORT}import sys\nif done: sys.exit()\ncheckpoint('run')\n",
        f"{IMPORT}def check():\n    if bad(): raise SystemExit\ncheck()\ncheckpoint('run')\n",
        f"{IMPORT}def main():\n    if 1: return\n    checkpoint('run')\n{MAIN}",
        f"{IMPORT}def main():\n    checkpoint('run')\n",
        f"{IMPORT}@command\ndef main():\n    checkpoint('run')\n{MAIN}",
        f"{IMPORT}def main():\n    yield checkpoint('run')\n{MAIN}",
        f"{IMPORT}import os\nos.environ['OUTRIDER_CHECKPOINTS'] = 'ck'\ncheckpoint('run')\n",
        f"{IMPORT}checkpoint = print\ncheckpoint('run')\n",
        "from torch.utils.checkpoint import checkpoint\ncheckpoint(f, x)\n",
        f"{IMPORT}def main():\n    main()\n{MAIN}",
        f"{IMPORT}this is no Python\ncheckpoint('run')\n",
    ],
)
def test_a_call_that_may_not_run_or_has_a_place_is_left_alone(source: str) -> None:
    assert needs_place(source, []) == 0


def test_a_script_that_shows_its_help_is_left_alone() -> None:
    assert needs_place(f"{IMPORT}checkpoint('run')\n", ["--help"]) == 0


def test_the_run_is_refused_until_it_has_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTRIDER_CHECKPOINTS", raising=False)
    (tmp_path / "train.py").write_text(f"{IMPORT}checkpoint('run')\n")
    program = Program(("train.py",), True, tmp_path)
    with pytest.raises(SpecError, match=r"train.py, line 2: checkpoint\(\) has no place .* --set checkpoints=ck"):
        planned(program, {})
    planned(program, {"checkpoints": "ck"})
    planned(program, {"image": {"env": {"OUTRIDER_CHECKPOINTS": "ck"}}, "provider": {"name": "ssh", "hosts": ["a"]}})
    monkeypatch.setenv("OUTRIDER_CHECKPOINTS", "/ck")
    planned(program, {})
