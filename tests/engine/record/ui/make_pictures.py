"""``python tests/engine/ui/make_pictures.py``: make the pictures of `outrider ui` in the documentation anew.

They show a run of ``examples/13_preemptions.py`` while it goes on. It needs Chromium, and takes a minute.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

from outrider.engine.record.runs.reader import Run, runs_in

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from chromium import Chromium
from served import serving

ROOT = Path(__file__).resolve().parents[4]
PICTURES, EXAMPLE = ROOT / "docs" / "pictures", ROOT / "examples" / "13_preemptions.py"
PATIENCE_S = 120.0
LOSSES = 3  # that the living run's page is to show
WIDTH = 1280


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        environment = {**os.environ, "OUTRIDER_STATE": folder, "OUTRIDER_RUNS": "1"}
        shutil.copy(EXAMPLE, state)  # so that the page names no folder of this computer
        command = [sys.executable, EXAMPLE.name]
        with (
            serving(state) as ui,
            subprocess.Popen(command, env=environment, cwd=state, stdout=subprocess.DEVNULL) as program,
        ):
            browser = Chromium(state / "profile")
            try:
                run = _living(state)
                browser.show(ui.url)
                for dark in (False, True):
                    browser.show(f"http://127.0.0.1:{ui.port}/runs/{run.id}", width=WIDTH, dark=dark)
                    _picture(browser, PICTURES / f"ui-{'dark' if dark else 'light'}.png")
            finally:
                browser.close()
                program.terminate()


def _living(state: Path) -> Run:
    """Return the run with losses, when it has had some of them."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        for run in runs_in(state / "runs"):
            if (run.directory / "events.jsonl").read_bytes().count(b'"node_lost"') >= LOSSES:
                return run
        time.sleep(0.1)
    raise SystemExit(f"no run with {LOSSES} lost nodes within {PATIENCE_S:.0f} s")


def _picture(browser: Chromium, file: Path) -> None:
    """Save a run's page down to its metrics, with as few colours as it needs."""
    browser.wait("document.getElementById('link').textContent === 'live'")
    time.sleep(1.0)  # charts are drawn
    height = browser.evaluate("document.getElementById('system').getBoundingClientRect().top + scrollY")
    browser.screenshot(file)
    whole = Image.open(file).convert("RGB")
    whole.crop((0, 0, whole.width, int(height))).quantize(128).save(file, optimize=True)


if __name__ == "__main__":
    main()
