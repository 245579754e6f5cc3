"""What tasks print is seen in a notebook, below the cell that runs, and tqdm moves on a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

from ..engine.terminal import on_a_terminal, screen

Cell = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def cell() -> Iterator[Cell]:
    """Run a cell, and return what appears below it: the texts of both streams, errors, and values."""
    manager, client = start_new_kernel(kernel_name="python3")

    def run(code: str) -> list[str]:
        shown: list[str] = []

        def hook(message: dict[str, dict[str, str]]) -> None:
            content = message["content"]
            if message["msg_type"] in {"stream", "error", "execute_result", "display_data"}:
                shown.append(content.get("text") or str(content))

        client.execute_interactive(textwrap.dedent(code), timeout=120, output_hook=hook)
        return shown

    yield run
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_prints_appear_below_the_cell_that_runs(cell: Cell) -> None:
    opened = cell("""
        from contextlib import ExitStack
        from outrider import Local, Pool, compute

        @compute
        def say(text):
            print(text)

        cells = ExitStack()
        pool = cells.enter_context(Pool(provider=Local()))
        say("first") >> pool
    """)
    assert opened == ["[node 0 · say #1] first\n"]
    assert cell("say('second') >> pool") == ["[node 0 · say #2] second\n"]
    assert cell("cells.close()") == []


def test_prints_appear_with_the_kernels_own_loop(cell: Cell) -> None:
    shown = cell("""
        from outrider import Local, Pool, compute

        @compute
        def say(text):
            print(text)

        async with Pool(provider=Local(), nodes=2) as pool:
            await pool.broadcast(say("all"))
    """)
    assert sorted("".join(shown).splitlines()) == ["[rank 0 · say] all", "[rank 1 · say] all"]


def test_tqdm_moves_on_a_terminal_and_leaves_one_line(tmp_path: Path) -> None:
    """It goes on when the test has seen how far it is."""
    program = """
        import os, time
        from outrider import Local, Pool, compute

        @compute
        def fit():
            from tqdm import tqdm
            for step in tqdm(range(3), mininterval=0, ncols=40):
                while not os.path.exists(f"TMP/{step}"):
                    time.sleep(0.01)

        with Pool(provider=Local()) as pool:
            fit() >> pool
    """
    step = 0

    def look(seen: str) -> None:
        nonlocal step
        if f"{step}/3" in screen(seen)[-1]:
            (tmp_path / f"{step}").touch()
            step += 1

    seen = on_a_terminal(program.replace("TMP", str(tmp_path)), look)
    assert step >= 3
    bar, summary = [line for line in screen(seen) if line]
    assert bar.startswith("[node 0 · fit #1] 100%|")
    assert "1 task done" in summary
