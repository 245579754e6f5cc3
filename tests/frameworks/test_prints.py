"""What tasks print with tqdm moves on a terminal."""

from __future__ import annotations

from pathlib import Path

from ..engine.terminal import on_a_terminal, screen


def test_tqdm_moves_on_a_terminal_and_leaves_one_line(tmp_path: Path) -> None:
    """It goes on when the test has seen how far it is."""
    program = """
        import os, time
        from outrider import Local, Pool, compute
        from outrider.engine.record.display import writer as sink

        sink.Writer.close.__defaults__ = (60.0,)  # else the last lines of a busy computer may be missing

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
