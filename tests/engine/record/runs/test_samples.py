"""Samples of nodes are lines of a file of their own, and read as they were told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from outrider.actors import events as ev
from outrider.engine.record.runs.lines import EVENTS, SYSTEM, SampleFile, read_samples, sample_line, samples_in
from outrider.engine.record.runs.status import RunStatus
from outrider.engine.record.runs.writer import Happened, Pages

GPU = ev.GpuSample(0, 0.5, 1 << 30, 80 << 30, 300.5)
SAMPLE = ev.NodeSampled(3, 5.0, 0.25, 8.0, 1 << 30, 4 << 30, 1 << 31, 1 << 35, 1000, 2000, (GPU,), at=99.5)

SHARES = st.floats(0, 1)
BYTES = st.integers(0, 2**47)
GPUS = st.builds(ev.GpuSample, st.integers(0, 15), st.none() | SHARES, BYTES, BYTES, st.none() | st.floats(0, 1e4))
SAMPLES = st.builds(
    ev.NodeSampled,
    st.integers(0, 1000),
    st.floats(0.1, 1e6),
    SHARES,
    st.floats(0.1, 1024),
    *[BYTES] * 6,
    st.lists(GPUS, max_size=8).map(tuple),
    at=st.floats(1, 1e10),
)


@given(st.lists(SAMPLES, max_size=5))
def test_samples_are_read_as_they_were_written(samples: list[ev.NodeSampled]) -> None:
    lines = [sample_line(each, 1.0) for each in samples]
    assert all(line.count(b"\n") == 1 for line in lines)
    assert list(samples_in(lines)) == samples


def test_a_line_has_the_fields_that_the_guide_names() -> None:
    said = json.loads(sample_line(replace(SAMPLE, at=0.0), 77.0))
    assert said["at"] == 77.0
    assert said["gpus"] == [
        {"index": 0, "utilisation": 0.5, "memory_bytes": 1 << 30, "memory_total_bytes": 80 << 30, "watts": 300.5}
    ]
    names = ("node", "cpu", "cpus", "received_bytes", "sent_bytes", "seconds")
    assert [said[name] for name in names] == [3, 0.25, 8.0, 1000, 2000, 5.0]


def test_a_sample_goes_into_its_own_file_and_is_no_news_of_the_run() -> None:
    pages = Pages(RunStatus("id", "train", 99.0, changed=99.0))
    pages.add(Happened(SAMPLE, 100.0))
    assert pages.taken() == {SYSTEM: sample_line(SAMPLE, 100.0)}
    assert pages.status.changed == 99.0
    pages.add(Happened(ev.PoolClosing(at=101.0), 101.0))
    assert [*pages.taken()] == [EVENTS]


def test_what_is_added_later_is_read_later_and_half_a_line_not_yet(tmp_path: Path) -> None:
    file, line = SampleFile(tmp_path), sample_line(SAMPLE, 1.0)
    assert list(file.new_samples()) == []  # there is no file yet
    (tmp_path / SYSTEM).write_bytes(line + b"{garbage}\n" + line[:20])
    assert list(file.new_samples()) == [SAMPLE]
    with (tmp_path / SYSTEM).open("ab") as more:
        more.write(line[20:] + line)
    assert list(file.new_samples()) == [SAMPLE, SAMPLE]
    assert list(file.new_samples()) == []
    assert read_samples(tmp_path) == [SAMPLE] * 3


def test_lines_that_are_no_samples_are_left_out() -> None:
    for broken in (b"7", b"[]", b"null", b'{"at":1}', sample_line(SAMPLE, 1.0).replace(b"0.25", b"[]")):
        assert list(samples_in([broken])) == []
