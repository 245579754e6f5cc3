"""Records come back as they were packed, in either form, and what is none is told apart from them."""

from __future__ import annotations

import json
import math
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.wire import log_records as records
from outrider.engine.wire.log_records import Artifact, Metrics, Params, Saved, Text

TIMES = st.floats(0, 1e11)
STEPS = st.none() | st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=records.NAME_CHARS)
PACKED = st.one_of(
    st.builds(records.metrics, TIMES, STEPS, st.dictionaries(NAMES, st.floats(allow_nan=False), max_size=4)),
    st.builds(records.text, TIMES, STEPS, NAMES, st.text(st.characters(codec="utf-8"))),
    st.builds(records.params, TIMES, st.dictionaries(NAMES, st.integers() | NAMES, max_size=4).map(json.dumps)),
    st.builds(records.artifact, TIMES, NAMES, st.integers(0, records.ARTIFACT_BYTES), st.just("0a" * 32)),
    st.builds(records.saved, TIMES, NAMES, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)),
)


def meant(packed: records.Packed) -> records.Record:
    kind, *fields = packed
    if kind == 2:
        return Params(fields[0], json.loads(fields[1]))
    return (Metrics, Text, None, Artifact, Saved)[kind](*fields)  # type: ignore[misc, return-value]


@given(st.lists(PACKED, max_size=8))
def test_records_come_back(logged: list[records.Packed]) -> None:
    bodies = records.packed(logged)
    assert [each for body in bodies for each in records.unpacked(body, 1.0)] == [meant(each) for each in logged]
    assert sum(map(records.count, bodies)) == len(logged)


@given(st.lists(PACKED, min_size=1, max_size=8))
def test_records_come_back_from_lines_as_processes_of_tasks_write_them(logged: list[records.Packed]) -> None:
    data = b"\n".join(map(records.line, logged))
    found = list(records.unpacked(data, 7.0))
    assert records.count(data) == len(logged)
    for before, after in zip(map(meant, logged), found, strict=True):
        assert after == (before if before.at else before._replace(at=7.0))  # 0 is as good as none


def test_the_name_of_a_checkpoint_may_be_long() -> None:
    (body,) = records.packed([records.saved(1.0, "x" * 500, 7, 10)])
    assert list(records.unpacked(body, 1.0)) == [Saved(1.0, "x" * records.NAME_CHARS, 7, 10)]


def test_many_records_are_several_messages() -> None:
    logged = [records.text(1.0, None, "sample", "x" * 60_000) for _ in range(20)]
    bodies = records.packed(logged)
    assert len(bodies) > 1
    assert max(map(len, bodies)) <= records.BATCH_BYTES
    assert sum(map(records.count, bodies)) == 20
    many = [records.metrics(1.0, None, {})] * 500
    assert [records.count(body) for body in records.packed(many)] == [500]


def test_what_a_program_of_any_language_writes_is_understood() -> None:
    said = [
        {"values": {"loss": 1, "least": "nan", "most": "-inf"}, "step": 7},
        {"text": "all is well"},
        {"params": {"lr": 0.1}, "at": 3.5},
    ]
    metrics, text, params = records.unpacked("\n".join(map(json.dumps, said)).encode(), 9.0)
    assert isinstance(metrics, Metrics)
    assert (metrics.at, metrics.step, metrics.values["loss"], metrics.values["most"]) == (9.0, 7, 1.0, -math.inf)
    assert math.isnan(metrics.values["least"])
    assert text == Text(9.0, None, "text", "all is well")
    assert params == Params(3.5, {"lr": 0.1})


WRONG: list[Any] = [
    [0, 1.0, None, {"loss": "high"}],
    [0, 1.0, None, {"loss": True}],
    [0, 1.0, None, {"": 1.0}],
    [0, 1.0, None, {"x" * 129: 1.0}],
    [0, 1.0, None, [1.0]],
    [0, 1.0, None, {str(n): 1.0 for n in range(501)}],
    [0, 1.0, "7", {}],
    [0, 1.0, 2**63, {}],
    [0, math.nan, None, {}],
    [0, -1.0, None, {}],
    [0, "now", None, {}],
    [1, 1.0, None, "sample", b"bytes"],
    [1, 1.0, None, "sample", "x" * 65_537],
    [2, 1.0, "["],
    [2, 1.0, "[" * 100_000],
    [2, 1.0, "1"],
    [2, 1.0, '{"deep":' + "[" * 33 + "]" * 33 + "}"],
    [2, 1.0, '{"deep":' + '{"deep":' * 600 + "1" + "}" * 601],
    [3, 1.0, "best.pt", 2**40, "0a" * 32],
    [3, 1.0, "best.pt", 1, "no digest"],
    [4, 1.0, "run-7", -1, 10],
    [4, 1.0, "run-7", 1, 2**63],
    [4, 1.0, "run-7", None, 10],
    [5, 1.0],
    [],
    7,
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: repr(wrong)[:30])
def test_what_is_no_record_is_none_and_the_next_is_read(wrong: Any) -> None:
    data = msgpack.packb([wrong, [0, 1.0, 1, {"loss": 1.0}]])
    assert list(records.unpacked(data, 1.0)) == [None, Metrics(1.0, 1, {"loss": 1.0})]


def test_params_may_have_levels() -> None:
    (params,) = records.unpacked(b'{"params": {"deep": ' + b"[" * 32 + b"]" * 32 + b"}}", 1.0)
    assert isinstance(params, Params)


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x93", b"\x07", b"\x91" * 5000, b"\xff\xfe", b'{"values": 1}', b"{}", b"{", b'{"at": "x"}']
)
def test_what_is_no_batch_is_one_that_is_none(data: bytes) -> None:
    assert list(records.unpacked(data, 1.0)) == [None]
