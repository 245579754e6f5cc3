"""Logs are divided into parts, of which the first and the newest stay."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.record.runs import writer
from outrider.engine.record.runs.lines import log_line
from outrider.engine.record.runs.writer import NEWEST, LogParts, Placed

Batch = Mapping[str, bytes]
PATHS = ["logs/rank-000.log", "logs/rank-001.log", "logs/node-000.log"]
PART, ALL, LEAST = 400, 3000, 250  # bytes
LINES = st.lists(st.integers(0, 500), min_size=1, max_size=8).map(
    lambda sizes: b"".join(log_line(1.0, "stdout", "x" * size) for size in sizes)
)
BATCHES = st.lists(st.dictionaries(st.sampled_from(PATHS), LINES), max_size=12)


def check(parts: LogParts, batches: Sequence[Batch]) -> None:
    files: dict[str, bytes] = {}
    written = dict.fromkeys(PATHS, b"")
    ever: dict[str, dict[int, bytes]] = {path: {} for path in PATHS}  # each part, those that went as well
    for batch in batches:
        placed = parts.place(batch)
        for path, text in batch.items():
            written[path] += text
        for path, text in placed.text.items():
            files[path] = files.get(path, b"") + text
        for path in placed.outdated:
            files.pop(path, None)
        for path, text in files.items():
            found = re.fullmatch(r"(logs/\w+-\d+)(?:\.(\d+))?\.log", path)
            assert found is not None
            ever[f"{found[1]}.log"][int(found[2] or 0)] = text
    for path, text in written.items():
        numbers = sorted(ever[path])
        left = [n for n in numbers if writer.part_path(path, n) in files]
        if text:
            newest = numbers[-NEWEST:]
            assert set(left) == {0, *newest}, "LOGS-2"
            assert len(left) <= 1 + NEWEST, "LOGS-3"
        lines = {n: ever[path][n].splitlines(keepends=True) for n in left}
        for n in left:
            assert len(ever[path][n]) <= PART or len(lines[n]) <= (2 if n else 1), "LOGS-3"
            assert lines[n][-1].endswith(b"\n"), "LOGS-1"
            if n:
                assert b" outrider part %d of this log" % (n + 1) in lines[n].pop(0), "LOGS-1"
        begins = b"".join(lines.get(0, []))
        ends = b"".join(line for n in left if n for line in lines[n])
        if left == list(range(len(left))):
            assert begins + ends == text, "LOGS-1"
        assert text.startswith(begins), "LOGS-1"
        assert text.endswith(ends), "LOGS-1"


@given(BATCHES)
def test_the_beginning_and_the_end_of_each_log_stay(batches: list[dict[str, bytes]]) -> None:
    check(LogParts(PART, ALL, LEAST), batches)


class NoMark(LogParts):
    """LOGS-1: a part does not say what it is."""

    def place(self, text: Batch) -> Placed:
        placed = super().place(text)
        lines = {
            path: b"".join(line for line in said.splitlines(keepends=True) if b" outrider part" not in line)
            for path, said in placed.text.items()
        }
        return Placed(lines, placed.outdated)


class NoBeginning(LogParts):
    """LOGS-2: the first part goes."""

    def place(self, text: Batch) -> Placed:
        placed = super().place(text)
        return Placed(placed.text, [*placed.outdated, *PATHS])


class NoLimit(LogParts):
    """LOGS-3: parts grow as they like."""

    @property
    def limit(self) -> int:
        return 10**9


@pytest.mark.parametrize(("broken", "rule"), [(NoMark, "LOGS-1"), (NoBeginning, "LOGS-2"), (NoLimit, "LOGS-3")])
def test_the_check_notices_when_a_rule_is_broken(broken: type[LogParts], rule: str) -> None:
    batches = [{PATHS[0]: log_line(1.0, "stdout", "x" * 100) * 5}] * 6
    check(LogParts(PART, ALL, LEAST), batches)
    with pytest.raises(AssertionError, match=rule):
        check(broken(PART, ALL, LEAST), batches)


def test_many_logs_share_what_a_record_may_have() -> None:
    parts = LogParts()
    parts.place({PATHS[0]: b""})
    assert parts.limit == writer.PART_BYTES
    parts.place({f"logs/rank-{rank:03}.log": b"" for rank in range(1000)})
    assert 1000 * 3 * parts.limit <= writer.ALL_BYTES * 1.01
    parts.place({f"logs/rank-{rank:03}.log": b"" for rank in range(100_000)})
    assert parts.limit == writer.LEAST_BYTES
