"""``python docs/pictures/notebook.py``: draw the pictures of a notebook anew, light and dark, by a kernel and Chromium.

It needs Chromium, and ipykernel, nbclient and nbconvert beside what the tests need. It runs the notebook, saves it as a
page in Jupyter's own style, and takes a picture of that. Nothing is loaded from anywhere.
"""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "engine" / "report"))
Chromium: Any = importlib.import_module("chromium").Chromium

WIDTH = 840
CALL = "await pool.broadcast(train(1000))"
CELLS = [
    """\
import time
from outrider import Local, Pool, compute, log_metrics

pool = await Pool(provider=Local(), nodes=4, name="train").open()""",
    f"""\
@compute
def train(steps):
    print("training begins")
    for step in range(steps):
        log_metrics({{"loss": 0.99**step, "accuracy": 1 - 0.98**step}}, step=step)
        time.sleep(0.05)

{CALL}""",
]
LOGS_NOTHING = "import asyncio, logging, os, signal\nlogging.disable()"
CALL_IN_WHICH_A_NODE_IS_LOST = """\
training = asyncio.ensure_future(pool.broadcast(train(1000)))
await asyncio.sleep(2)
(lost,) = [node for node in pool.snapshot().nodes if node.rank == 2]
os.killpg(int(lost.facts["group"]), signal.SIGKILL)
await asyncio.sleep(3)"""


def executed(folder: Path) -> Any:
    """Return the notebook as it is while its last cell runs."""
    notebooks, client = importlib.import_module("nbformat.v4"), importlib.import_module("nbclient")
    codes = [LOGS_NOTHING, *CELLS[:-1], CELLS[-1].replace(CALL, CALL_IN_WHICH_A_NODE_IS_LOST)]
    book = notebooks.new_notebook(cells=[notebooks.new_code_cell(code) for code in codes])
    client.NotebookClient(book, timeout=120, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    del book.cells[0]
    for number, cell in enumerate(book.cells):
        cell.source, cell.execution_count = CELLS[number], number + 1
    return book


def page(book: Any, theme: str) -> str:
    """Return the notebook in Jupyter's own style, without what that would load from elsewhere."""
    exporter = importlib.import_module("nbconvert").HTMLExporter(template_name="lab", theme=theme)
    html, _ = exporter.from_notebook_node(book)
    return re.sub(r'<(script|link)[^>]*(src|href)="https?:[^>]*>(</script>)?', "", html)


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        book = executed(folder)
        chromium = Chromium(folder / "profile")
        try:
            for theme in ("light", "dark"):
                (folder / "book.html").write_text(page(book, theme))
                chromium.show(folder / "book.html", width=WIDTH, dark=theme == "dark")
                assert [each for each in chromium.requests if not each.startswith(("file:", "data:"))] == []
                chromium.screenshot(ROOT / "docs" / "pictures" / f"notebook-{theme}.png", of="main")
        finally:
            chromium.close()


if __name__ == "__main__":
    main()
