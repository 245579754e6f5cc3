"""What people read of what tasks print."""

from __future__ import annotations

import pytest

from outrider.actors import events as ev
from outrider.engine.observe.prints import marked, origin


def test_printed_lines_are_marked() -> None:
    event = ev.TaskOutput(1, 0, 3, "stdout", "a\n\x1b[1mb\x1b[0m\n\nlast", "train", ranks=4)
    assert marked(event) == "[rank 3 · train] a\n[rank 3 · train] b\n[rank 3 · train] \n[rank 3 · train] last\n"


def test_lost_output_is_counted_in_its_line() -> None:
    event = ev.TaskOutput(1, 0, 0, "stderr", "after\n", "train", dropped=123_456, ranks=2)
    assert marked(event) == "[rank 0 · train] ... 123,456 bytes were lost here\n[rank 0 · train] after\n"


@pytest.mark.parametrize(
    ("event", "where"),
    [
        (ev.TaskOutput(17, 2, 0, "stdout", "", "f"), "node 2 · f #17"),
        (ev.TaskOutput(17, 2, 3, "stdout", "", "train", ranks=4), "rank 3 · train"),
        (ev.TaskOutput(17, 0, 0, "stdout", "", "train", ranks=1), "node 0 · train #17"),
        (ev.TaskOutput(0, 2, 0, "stdout", ""), "node 2"),
        (ev.TaskOutput(17, 2, 0, "stdout", "", "a\x1b[2J\nb"), "node 2 · a; b #17"),
    ],
)
def test_output_says_where_it_comes_from(event: ev.TaskOutput, where: str) -> None:
    assert origin(event) == where
