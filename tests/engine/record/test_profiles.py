"""The traces of ranks become one trace on one clock, and what is damaged or missing is told of."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from outrider.actors.events import ProfileTaken
from outrider.engine.record.profiles import facts, lines_of, merge, merged_profiles, profiles_in
from outrider.engine.record.runs.lines import event_line

BASE_NS = 1_790_000_000_000_000_000  # of torch's times
BEGAN_NS = BASE_NS + 5_000_000_000_000
MS = 1_000_000


def part(rank: int, clock_offset_s: float | None = 0.0, **more: Any) -> ProfileTaken:
    fields: dict[str, Any] = {"artifact": f"profile-p-{rank}.gz", "function": "train", "ranks": 2, "generation": 1}
    error = None if clock_offset_s is None else 0.0002
    return ProfileTaken(
        1, rank, rank, "p", **{**fields, **more}, clock_offset_s=clock_offset_s, clock_error_s=error, at=9.0
    )


def put(record: Path, rank: int, *, ahead_ns: int = 0, own_ms: float = 10, cat: str = "user_annotation") -> None:
    """Write what a rank sends of 5 steps of 50 ms, ``own_ms`` of its own in each. Its clock is ``ahead_ns`` ahead."""
    began = BEGAN_NS + ahead_ns
    name = "gloo:all_reduce" if cat == "user_annotation" else "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
    torch = [
        {"ph": "M", "name": "process_labels", "pid": 77, "args": {"labels": "CPU"}},
        {"ph": "M", "name": "process_labels", "pid": 0, "args": {"labels": "GPU 0"}},
        {"ph": "M", "name": "thread_name", "pid": 77, "tid": 5, "args": {"name": "main"}},
        {"ph": "s", "id": 3, "pid": 77, "tid": 5, "ts": 0.0, "name": "ac2g", "cat": "ac2g"},
    ]
    for step in range(5):
        at_us = (began - BASE_NS) / 1e3 + 50_000 * step + own_ms * 1e3
        where = {"pid": 77, "tid": 5} if cat == "user_annotation" else {"pid": 0, "tid": 7}
        torch.append({"ph": "X", "cat": cat, "name": name, **where, "ts": at_us, "dur": 50_000 - own_ms * 1e3})
        torch.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 77, "tid": 5, "ts": at_us, "dur": 1.0})
    head = {
        "format": 1,
        "began_ns": began,
        "ended_ns": began + 250 * MS,
        "steps_ns": [began + 50 * MS * n for n in range(6)],
        "steps_by": "optimizer",
        "names": ["train (train.py:1)"],
        "python": [[0, 0, 250 * MS]],
    }
    (record / "artifacts").mkdir(exist_ok=True)
    trace = {"baseTimeNanoseconds": BASE_NS, "traceEvents": torch}
    packed = gzip.compress(json.dumps(head).encode() + b"\n" + json.dumps(trace).encode())
    (record / "artifacts" / f"profile-p-{rank}.gz").write_bytes(packed)


def read(trace: Path) -> list[dict[str, Any]]:
    said = json.loads(gzip.decompress(trace.read_bytes()))
    assert said["displayTimeUnit"] == "ms"
    return said["traceEvents"]


@pytest.mark.parametrize("cat", ["user_annotation", "kernel"])
def test_two_clocks_that_are_five_seconds_apart_become_one(tmp_path: Path, cat: str) -> None:
    put(tmp_path, 0, cat=cat)
    put(tmp_path, 1, ahead_ns=5_000_000_000, own_ms=40, cat=cat)
    merged = merge(tmp_path, "p", [part(1, 5.0), part(0, 0.0)])
    assert merged.trace is not None
    events = read(merged.trace)
    steps = {each["pid"]: each["ts"] for each in events if each["name"] == "step 1"}
    assert sorted(steps.values()) == pytest.approx([0.0, 0.0], abs=1.0), "microseconds"
    reduced = [each for each in events if "all_reduce" in each["name"] or "AllReduce" in each["name"]]
    assert [round(each["ts"] + each["dur"]) for each in reduced] == [50_000 * n for n in (1, 2, 3, 4, 5)] * 2
    names = [each["args"]["name"] for each in events if each["name"] == "process_name"]
    assert [name for name in names if "GPU" not in name] == ["rank 0 of train, node 0", "rank 1 of train, node 1"]
    assert len({each["id"] for each in events if each["ph"] == "s"}) == 2, "arrows lead from rank to rank never"
    assert len({each["pid"] for each in events if each["name"] == "aten::mm"}) == 2
    assert merged.table is not None
    assert merged.table.stragglers == [1]
    assert merged.clock_error_s == pytest.approx(0.0004)
    said = "Rank 1 (node 1) is the straggler: it is outside of collectives 30.0 ms longer in each step than any other"
    assert any(line.startswith(said) for line in lines_of(merged))
    assert merged_profiles(tmp_path) == [json.loads(json.dumps(facts(merged)))]
    assert merged.trace.stat().st_mode & 0o777 == 0o600


def test_what_is_missing_is_told_and_the_rest_is_merged(tmp_path: Path) -> None:
    put(tmp_path, 0)
    put(tmp_path, 2)
    whole = (tmp_path / "artifacts" / "profile-p-2.gz").read_bytes()
    (tmp_path / "artifacts" / "profile-p-2.gz").write_bytes(whole[: len(whole) // 2])
    parts = [
        part(0, None, said="torch's profiler did not begin: RuntimeError: no"),
        part(1, artifact="", said="its process has ended"),
        part(2),
        part(3, artifact="../../etc/passwd"),
        part(4),
    ]
    merged = merge(tmp_path, "p", parts)
    said = {each.whose: each.reason for each in merged.missing}
    assert said["rank 0 of train, node 0"].startswith("torch's profiler did not begin")
    assert said["rank 1 of train, node 1"] == "its process has ended"
    assert "cannot be read" in said["rank 2 of train, node 2"]
    assert "cannot be read: FileNotFoundError" in said["rank 4 of train, node 4"]
    assert merged.clock_error_s is None
    assert merged.trace is not None
    assert any(each["name"] == "aten::mm" for each in read(merged.trace))
    assert "No straggler can be told of less than two ranks." in lines_of(merged)


def test_nothing_at_all_is_told_as_well(tmp_path: Path) -> None:
    merged = merge(tmp_path, "p", [part(0, artifact="", said="it has ended")])
    assert merged.trace is None
    assert lines_of(merged) == ["profile p of train", "rank 0 of train, node 0: it has ended"]


def test_a_record_has_its_profiles_and_damage_is_passed_over(tmp_path: Path) -> None:
    assert profiles_in(tmp_path) == {}
    assert merged_profiles(tmp_path) == []
    lines = [event_line(part(rank), 9.0, "", str) for rank in (0, 1, 0)]
    bad = [b'{"event":"profile_taken","job":"x"}\n', b'"profile_taken"\n', b'{"event":"profile_taken"']
    odd = event_line(ProfileTaken(1, 0, 0, "../p", ""), 9.0, "", str)
    (tmp_path / "events.jsonl").write_bytes(b"".join([lines[0], *bad[:2], odd, *lines[1:], bad[2]]))
    assert profiles_in(tmp_path) == {"p": [part(0), part(1)]}
