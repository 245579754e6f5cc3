"""Pools in a notebook, by a real kernel of IPython's: what appears in which cell, when, and what an interrupt ends."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

PATIENCE_S = 120.0
SHOWN = {"display_data", "update_display_data", "stream", "error", "execute_result"}
TASKS = """
    import time
    from outrider import Local, Pool, SyncPool, compute
    from outrider.engine.record.display import notebook, writer as sink

    sink.Writer.close.__defaults__ = (60.0,)  # else what a busy computer draws late is not there
    notebook.WAIT_S = 60.0

    @compute
    def say(text):
        print(text)

    @compute
    def waits(path):
        import os
        while not os.path.exists(path):
            time.sleep(0.05)

    @compute
    def work(seconds):
        print("begins")
        time.sleep(seconds)
        return seconds
"""


class Shown:
    """A message that a front end shows. ``cell``: the request in whose name it was sent. ``at``: the kernel's time."""

    def __init__(self, message: dict[str, Any]) -> None:
        content = message["content"]
        self.kind: str = message["msg_type"]
        self.cell: str = message["parent_header"].get("msg_id", "")
        self.at: datetime = message["header"]["date"]
        self.display: str = content.get("transient", {}).get("display_id", "")
        data = content.get("data", {})
        self.text: str = content.get("text") or " ".join(re.sub(r"<[^>]*>", " ", data.get("text/html", "")).split())
        self.html = "text/html" in data
        self.error = "\n".join(content.get("traceback", ()))


class Kernel:
    def __init__(self) -> None:
        self.manager, self.client = start_new_kernel(startup_timeout=PATIENCE_S, kernel_name="python3")

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def run(self, code: str, when: Callable[[Shown], object] = lambda _: None) -> list[Shown]:
        """Run a cell, and return what is shown until its end. ``when`` is called with each message, as it comes."""
        cell = self.client.execute(textwrap.dedent(code))
        shown: list[Shown] = []
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE_S)
            if message["msg_type"] == "status" and message["parent_header"].get("msg_id") == cell:
                if message["content"]["execution_state"] == "idle":
                    assert {each.cell for each in displays(shown)} <= {
                        cell
                    }  # programs that run notebooks read no others
                    return shown
                shown.clear()  # what came before this cell began
            elif message["msg_type"] in SHOWN:
                shown.append(Shown(message))
                when(shown[-1])

    def later(self, wanted: str) -> list[Shown]:
        """Return what is shown while no cell runs, until a display has what is wanted."""
        shown: list[Shown] = []
        until = time.monotonic() + PATIENCE_S
        while not (shown and wanted in shown[-1].text):
            message = self.client.get_iopub_msg(timeout=max(0.0, until - time.monotonic()))
            if message["msg_type"] in SHOWN:
                shown.append(Shown(message))
        return shown

    def interrupt_at(self, text: str) -> Callable[[Shown], object]:
        """Interrupt the cell once, when both ranks have printed ``text``."""
        seen = 0

        def look(shown: Shown) -> None:
            nonlocal seen
            before, seen = seen, seen + shown.text.count(text)
            if before < 2 <= seen:
                self.manager.interrupt_kernel()

        return look


def displays(shown: list[Shown]) -> list[Shown]:
    return [each for each in shown if each.display]


def printed(shown: list[Shown]) -> list[str]:
    return sorted("".join(each.text for each in shown if each.kind == "stream").splitlines())


def error(shown: list[Shown]) -> str:
    (found,) = [each.error for each in shown if each.kind == "error"]
    return re.sub(r"\x1b\[[0-9;]*m", "", found)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    assert kernel.run(TASKS) == []
    yield kernel
    kernel.close()


OPEN = {
    "waits": "pool = SyncPool(Pool(provider=Local(), nodes=2)).open()",
    "awaited": "pool = await Pool(provider=Local(), nodes=2).open()",
}
BROADCAST = {"waits": "{} @ pool", "awaited": "await pool.broadcast({})"}
CLOSE = {"waits": "pool.close()", "awaited": "await pool.close()"}


@pytest.fixture(params=["waits", "awaited"])
def way(request: pytest.FixtureRequest, kernel: Kernel) -> Iterator[str]:
    yield request.param
    kernel.run(CLOSE[request.param])  # a pool that is closed already is left alone


def test_one_display_in_the_cell_that_opens_the_pool_lives_as_long_as_the_pool(kernel: Kernel, way: str) -> None:
    opened = displays(kernel.run(OPEN[way]))
    assert [each.kind for each in opened] == ["display_data"] + ["update_display_data"] * (len(opened) - 1)
    assert "2 of 2 nodes ready" in opened[-1].text  # when the cell ends

    ran = displays(kernel.run(BROADCAST[way].format("work(3)")))
    assert {each.kind for each in ran} == {"update_display_data"}
    busy = [each for each in ran if "work" in each.text]
    gaps = [(after.at - before.at).total_seconds() for before, after in pairwise(busy)]
    assert min(gaps) <= 1.0  # a busy computer makes some longer
    assert "broadcast work: 2 ranks, generation 1" in busy[-1].text
    assert "2 of 2 tasks done" in ran[-1].text  # when the cell ends

    closed = displays(kernel.run(CLOSE[way]))
    assert "ended after" in closed[-1].text
    assert len({each.display for each in opened + ran + closed}) == 1


def test_it_goes_on_when_no_cell_runs(kernel: Kernel, way: str, tmp_path: Path) -> None:
    kernel.run(OPEN[way])
    kernel.run(f"job = pool.submit(waits({str(tmp_path / 'go on')!r}))")
    later = [*kernel.later("waits"), *kernel.later("waits")]
    (tmp_path / "go on").touch()
    later += kernel.later("1 of 1 task done")
    assert {each.kind for each in displays(later)} == {"update_display_data"}
    assert len(displays(later)) >= 3


def test_prints_appear_below_the_cell_that_runs(kernel: Kernel, way: str) -> None:
    opened = kernel.run(OPEN[way])
    assert printed(opened) == []
    for text in ("first", "second"):
        shown = kernel.run(BROADCAST[way].format(f"say({text!r})"))
        assert printed(shown) == [f"[rank 0 · say] {text}", f"[rank 1 · say] {text}"]


def test_an_interrupt_ends_the_broadcast_and_the_pool_lives(kernel: Kernel, way: str) -> None:
    kernel.run(OPEN[way])
    began = time.monotonic()
    shown = kernel.run(BROADCAST[way].format("work(600)"), when=kernel.interrupt_at("begins"))
    assert time.monotonic() - began < 200
    told = error(shown)
    assert told.splitlines()[-1].startswith("KeyboardInterrupt" if way == "waits" else "CancelledError")
    assert len(told.splitlines()) < 16
    assert "2 cancelled" in displays(shown)[-1].text
    assert printed(kernel.run(BROADCAST[way].format("say('again')"))) == [
        "[rank 0 · say] again",
        "[rank 1 · say] again",
    ]


def test_an_interrupt_leaves_the_block_of_a_cell(kernel: Kernel) -> None:
    code = """
        async with Pool(provider=Local(), nodes=2) as pool:
            await pool.broadcast(work(60))
    """
    shown = kernel.run(code, when=kernel.interrupt_at("begins"))
    assert "CancelledError" in error(shown)
    assert "interrupted after" in displays(shown)[-1].text


def test_two_pools_have_two_displays_and_say_how_they_end(kernel: Kernel) -> None:
    code = """
        with Pool(provider=Local(), name="one") as one, Pool(provider=Local(), name="two") as two:
            say("to one") >> one
            say("to two") >> two
            raise ValueError("bad")
    """
    shown = kernel.run(code)
    both = {each.display: each for each in displays(shown)}  # the last state of each
    assert sorted(each.text.split(" after")[0] for each in both.values()) == [
        "outrider one · local · ended with ValueError: bad",
        "outrider two · local · ended with ValueError: bad",
    ]
    assert [each.kind for each in displays(shown)].count("display_data") == 2
    assert printed(shown) == ["[node 0 · say #1] to one", "[node 0 · say #1] to two"]


def test_pools_and_jobs_show_themselves(kernel: Kernel) -> None:
    kernel.run(OPEN["awaited"])
    for code, text in [
        ("pool", "2 of 2 nodes ready node state rank where accelerators 0 ● ready"),
        ("job = pool.submit(work(0)); job", "● job 1 work: under way"),
        ("await job; job", "● job 1 work: returned"),
        ("await pool.close(); pool", "ended after 1 job"),
        ("Pool(provider=Local())", "Pool of local, not open yet"),
    ]:
        (shown,) = [each for each in kernel.run(code) if each.kind == "execute_result"]
        assert shown.html
        assert text in shown.text


def test_a_display_that_fails_fails_no_pool(kernel: Kernel) -> None:
    code = """
        import IPython.display
        from unittest import mock

        with mock.patch.object(IPython.display, "display", side_effect=RuntimeError("no display")):
            with Pool(provider=Local()) as pool:
                say("all the same") >> pool
    """
    assert [each.text for each in kernel.run(code)] == ["[node 0 · say #1] all the same\n"]


@pytest.mark.parametrize(
    ("last", "state"), [("await pool.close()", "ended after"), ("1 + 1", "2 of 2 nodes ready · 2 of 2 tasks done")]
)
def test_a_notebook_that_a_program_runs_is_saved_with_the_last_state(last: str, state: str) -> None:
    nbclient, notebooks = pytest.importorskip("nbclient"), pytest.importorskip("nbformat.v4")
    codes = [TASKS, OPEN["awaited"], BROADCAST["awaited"].format("work(0.1)"), last]
    book = notebooks.new_notebook(cells=[notebooks.new_code_cell(textwrap.dedent(code)) for code in codes])
    nbclient.NotebookClient(book, timeout=PATIENCE_S, kernel_name="python3").execute()
    (display,) = book.cells[1].outputs
    assert state in display.data["text/plain"]
    assert {output.output_type for output in book.cells[2].outputs} == {"stream", "execute_result"}
