"""The parts that need no server: filters, pages, buckets, what was when, the clock."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.testing.clouds.aws.faults import Faults, LostAnswer, Slow, Throttle
from outrider.testing.clouds.aws.filters import chosen, page
from outrider.testing.clouds.aws.instance_types import quota_code
from outrider.testing.clouds.aws.protocol import EC2Error
from outrider.testing.clouds.aws.throttle import Buckets
from outrider.testing.clouds.shared.clock import Clock
from outrider.testing.clouds.shared.versions import Versions

FACTS = {"colour": lambda thing: [thing[0]], "size": lambda thing: [thing[1]]}
NAMES = st.lists(st.text("ab*?.\\", max_size=4), max_size=6)


@given(NAMES, st.text("ab", max_size=4))
def test_wildcards_stand_for_others_and_nothing_else_does(names: list[str], wanted: str):
    def found(pattern: str) -> list[str]:
        return chosen(names, [{"Name": "name", "Values": [pattern]}], {"name": lambda name: [name]})

    assert found("*") == names
    assert found("?") == [name for name in names if len(name) == 1]
    assert found(wanted) == [name for name in names if name == wanted]
    for name in names:
        assert name in found(re.sub(r"([*?\\])", r"\\\1", name)), "quoted, it is itself"


def test_filters_are_all_to_fit_each_by_one_value():
    things = [("red", "1"), ("blue", "1"), ("red", "2")]
    asked = [{"Name": "colour", "Values": ["red", "green"]}, {"Name": "size", "Values": ["1"]}]
    assert chosen(things, asked, FACTS) == things[:1]


@pytest.mark.parametrize("things", [[], [("red", "1")]])
@pytest.mark.parametrize("name", ["weight", "tag:weight", None])
def test_a_filter_that_does_not_exist_is_refused_whatever_there_is(things: list[tuple[str, str]], name: str | None):
    """Also when another one fits nothing, so that nothing would be left for it to be tried on."""
    asked = [{"Name": "colour", "Values": ["green"]}, {"Name": name, "Values": ["1"]}]
    with pytest.raises(EC2Error, match=f"The filter '{name or 'null'}' is invalid"):
        chosen(things, asked, FACTS)


def test_of_what_can_have_tags_any_tag_may_be_asked_for():
    things = [{}, {"weight": "1"}, {"size": "1"}]
    found = {
        name: chosen(things, [{"Name": name, "Values": [value]}], {}, lambda tags: tags)
        for name, value in (("tag:weight", "1"), ("tag-key", "size"), ("tag-value", "1"), ("tag:colour", "*"))
    }
    assert found == {"tag:weight": things[1:2], "tag-key": things[2:], "tag-value": things[1:], "tag:colour": []}


@given(st.integers(0, 50), st.integers(1, 20), st.integers(1, 20))
def test_pages_are_everything_once(count: int, asked: int, most: int):
    seen: list[int] = []
    token: str | None = None
    while True:
        shown, token = page(range(count), {"MaxResults": asked, "NextToken": token}, most=most)
        assert len(shown) <= min(asked, most)
        seen += shown
        if token is None:
            break
    assert seen == list(range(count))
    with pytest.raises(EC2Error, match="InvalidNextToken"):
        page(range(count), {"NextToken": "7"})


@given(st.lists(st.floats(0, 5), min_size=1, max_size=60))
def test_no_bucket_gives_more_than_its_size_and_rate(pauses: list[float]):
    now, passed = [0.0], 0
    buckets = Buckets(lambda: now[0])
    for pause in pauses:
        now[0] += pause
        try:
            buckets.take("RunInstances", narrowed=False)
            passed += 1
        except EC2Error:
            pass
        buckets.take("TerminateInstances", narrowed=False)  # has its own
    assert passed <= 5 + 2 * sum(pauses) + 1e-6
    assert passed >= min(len(pauses), 5)


def test_a_bucket_holds_no_more_than_its_size():
    now = [0.0]
    buckets = Buckets(lambda: now[0])
    buckets.take("RunInstances", narrowed=False)
    now[0] = 3600.0
    for _ in range(5):
        buckets.take("RunInstances", narrowed=False)
    with pytest.raises(EC2Error, match="RequestLimitExceeded"):
        buckets.take("RunInstances", narrowed=False)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9) | st.none()), max_size=10), st.integers(0, 20))
def test_versions_show_what_was(changes: list[tuple[int, int | None]], ago: int):
    now = [0.0]
    versions: Versions[int] = Versions(lambda: now[0])
    value_at: dict[float, int | None] = {}
    for pause, value in changes:
        now[0] += pause
        versions.put("x", value)
        value_at[now[0]] = value
    then = now[0] - ago
    known = [value for at, value in value_at.items() if at <= then] if ago else list(value_at.values())
    expected = known[-1] if known else None
    assert versions.get("x", ago) == expected
    assert versions.all(ago) == ([] if expected is None else [expected])


@contextmanager
def ticking() -> Iterator[tuple[Clock, list[str], list[Exception]]]:
    failed: list[Exception] = []
    clock = Clock(failed.append)
    try:
        yield clock, [], failed
    finally:
        clock.close()


def test_deeds_are_done_in_their_order_when_time_is_hurried():
    with ticking() as (clock, done, _):
        clock.after(2000, lambda: done.append("late"))
        clock.after(100, lambda: clock.after(50, lambda: done.append("follows")))
        with clock.held():
            until = clock.now() + 160
            while clock.step(until):
                pass
        assert done == ["follows"]
        assert 160 <= clock.now() < 1999


def test_failing_action_does_not_stop_the_clock():
    with ticking() as (clock, _, failed):
        done = threading.Event()
        clock.after(0, lambda: 1 / 0)  # type: ignore[arg-type, return-value]
        clock.after(0, done.set)
        assert done.wait(60)
        assert [type(each) for each in failed] == [ZeroDivisionError]


def test_faults_happen_as_often_as_said():
    faults = Faults()
    faults.add(Throttle("RunInstances", times=2, after=1), LostAnswer(times=None))
    found = [faults.first_of(Throttle, "RunInstances") is not None for _ in range(5)]
    assert found == [False, True, True, False, False]
    assert faults.first_of(Throttle, "StopInstances") is None
    assert all(faults.first_of(LostAnswer, "Anything") for _ in range(3))
    assert list(faults) == [LostAnswer(times=None)]
    faults.add(Slow(seconds=1), Slow(seconds=2))
    faults.clear(Slow(seconds=1))
    assert faults.of(Slow) == [Slow(seconds=2)]
    faults.clear()
    assert list(faults) == []


@pytest.mark.parametrize(
    ("name", "market", "code"),
    [
        ("m7i.large", "on-demand", "L-1216C47A"),
        ("inf2.xlarge", "spot", "L-B5D1601B"),
        ("g5.xlarge", "on-demand", "L-DB2E81BA"),
        ("p5.48xlarge", "spot", "L-7212CCBC"),
        ("trn1.2xlarge", "on-demand", "L-2C3B7624"),
        ("hpc7g.4xlarge", "on-demand", "L-F7808C92"),
        ("i4i.large", "spot", "L-34B43A08"),
    ],
)
def test_types_and_their_quotas(name: str, market: str, code: str):
    assert quota_code(name, market) == code
