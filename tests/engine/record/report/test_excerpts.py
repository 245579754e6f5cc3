"""How much of each log a report has."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.record.report.contents import excerpts, logs_in, shares


def lines(count: int, word: str = "text") -> bytes:
    return b"".join(b"2026-11-25T08:00:00.%03dZ stdout %s %d\n" % (n % 1000, word.encode(), n) for n in range(count))


@given(st.lists(st.integers(0, 10_000), max_size=30), st.integers(0, 50_000))
def test_what_small_logs_leave_is_for_the_large_ones(sizes: list[int], budget: int) -> None:
    given_ = shares(sizes, budget)
    assert all(0 <= each <= size for each, size in zip(given_, sizes, strict=True))
    assert sum(given_) <= budget
    cut = [each for each, size in zip(given_, sizes, strict=True) if each < size]
    if cut:
        assert max(cut) - min(cut) <= 1, "those that are cut have as much as each other"
        assert sum(given_) >= budget - len(sizes)


def test_a_long_log_has_its_beginning_and_its_end(tmp_path: Path) -> None:
    (tmp_path / "rank-000.log").write_bytes(lines(10_000))
    (found,), left = excerpts(tmp_path, [["rank-000.log"]], 20_000)
    assert left == []
    assert found.head[0].text == "text 0"
    assert found.tail[-1].text == "text 9999"
    assert found.left_out_bytes > 300_000
    assert all(line.text.startswith("text ") for line in [*found.head, *found.tail]), "whole lines"


def test_a_short_log_is_whole(tmp_path: Path) -> None:
    (tmp_path / "rank-000.log").write_bytes(lines(10))
    (found,), _ = excerpts(tmp_path, [["rank-000.log"]])
    assert [line.text for line in found.head] == [f"text {n}" for n in range(10)]
    assert (found.tail, found.left_out_bytes) == ([], 0)


def test_the_parts_of_a_log_are_one(tmp_path: Path) -> None:
    for name, word in (("rank-001.log", "first"), ("rank-001.7.log", "late"), ("rank-001.10.log", "newest")):
        (tmp_path / name).write_bytes(lines(100, word))
    logs = logs_in([path.name for path in tmp_path.iterdir()])
    assert logs == [["rank-001.log", "rank-001.7.log", "rank-001.10.log"]]
    (found,), _ = excerpts(tmp_path, logs, 2_000)
    assert found.title == "rank 1"
    assert found.head[0].text == "first 0"
    assert found.tail[-1].text == "newest 99"
    (whole,), _ = excerpts(tmp_path, logs)
    assert len(whole.head) == 300


def test_logs_are_in_order_and_other_files_are_none() -> None:
    assert logs_in(["node-000.log", "rank-010.log", "rank-002.log", "notes.txt", "rank-1.log.new"]) == [
        ["rank-002.log"],
        ["rank-010.log"],
        ["node-000.log"],
    ]


def test_of_a_thousand_logs_some_are_only_named(tmp_path: Path) -> None:
    names = [[f"rank-{number:03}.log"] for number in range(1000)]
    for (name,) in names:
        (tmp_path / name).write_bytes(lines(200))
    found, left = excerpts(tmp_path, names)
    assert len(found) + len(left) == 1000
    assert left[-1] == "rank 999"
    assert sum(each.size_bytes - each.left_out_bytes for each in found) <= 512 * 1024


def test_a_log_that_is_gone_or_no_text_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "rank-000.log").write_bytes(b"\xff\xfe\x00 no log\n2026-11-25T08:00:00.000Z stdout \xff bad\n2026")
    found, _ = excerpts(tmp_path, [["rank-000.log"], ["rank-001.log"]])
    assert [line.text for each in found for line in each.head] == ["\ufffd bad"]
