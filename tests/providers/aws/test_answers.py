"""What counts as an answer, against botocore's own parsers: ANSWER-1 for every place where a body may be cut."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from botocore.parsers import create_parser
from botocore.session import Session

from outrider.providers.aws import errors

INSTANCES = """<?xml version="1.0" encoding="UTF-8"?>
<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r</requestId><reservationSet>
<item><reservationId>r-1</reservationId><instancesSet><item><instanceId>i-1</instanceId>
<launchTime>2026-02-03T04:05:06.000Z</launchTime><instanceState><code>16</code><name>running</name></instanceState>
</item></instancesSet></item></reservationSet></DescribeInstancesResponse>"""
PARAMETERS = json.dumps({"InvalidParameters": [], "Parameters": [{"Name": "a", "Value": "ami-1", "Version": 3}]})


@cache
def model(service: str, action: str) -> Any:
    return Session().get_service_model(service).operation_model(action)


def read(of: Any, body: bytes) -> dict[str, Any]:
    """As `api` has it read.

    Raises:
        Exception: it is no answer.
    """
    response = {"status_code": 200, "headers": {}, "body": body}
    errors.check_root(operation_model=of, response_dict=response, customized_response_dict={})
    answer: dict[str, Any] = create_parser(of.service_model.metadata["protocol"]).parse(response, of.output_shape)
    errors.check_contents(of, answer)
    return answer


@pytest.mark.parametrize(
    ("service", "action", "whole", "key"),
    [("ec2", "DescribeInstances", INSTANCES, "Reservations"), ("ssm", "GetParameters", PARAMETERS, "Parameters")],
)
def test_truncated_answer_is_unreadable(service: str, action: str, whole: str, key: str) -> None:
    of = model(service, action)
    assert len(read(of, whole.encode())[key]) == 1
    for length in range(len(whole)):
        with pytest.raises(Exception) as caught:  # noqa: PT011  any is a lost answer, as `lost_code` says
            read(of, whole.encode()[:length])
        assert errors.lost_code(caught.value) in errors.LOST, length


@pytest.mark.parametrize("before", ["", "\n", "\ufeff", "<!-- a <b> -->", '<?xml version="1.0"?>\n<!---->\n'])
def test_prologue_before_the_document_is_accepted(before: str) -> None:
    inner = INSTANCES.partition("?>")[2].strip()
    of = model("ec2", "DescribeInstances")
    errors.check_root(operation_model=of, response_dict={"status_code": 200, "body": (before + inner).encode()})


def test_an_answer_whose_lists_are_empty_is_one() -> None:
    said = read(model("ssm", "GetParameters"), b'{"InvalidParameters": [], "Parameters": []}')
    assert said["Parameters"] == []
    inner = b"<DescribeInstancesResponse><requestId>r</requestId><reservationSet/></DescribeInstancesResponse>"
    assert read(model("ec2", "DescribeInstances"), inner)["Reservations"] == []


@pytest.mark.parametrize(
    "page",
    [
        b"<html><body>The connection was refused</body></html>",
        b'<?xml version="1.0"?><DescribeVolumesResponse><requestId>r</requestId><volumeSet/></DescribeVolumesResponse>',
        b"no document at all",
    ],
)
def test_another_document_is_a_lost_answer(page: bytes) -> None:
    """A proxy's page, or the answer to another call, has nothing in it that botocore looks for."""
    with pytest.raises(errors.Unreadable) as caught:
        read(model("ec2", "DescribeInstances"), page)
    assert errors.lost_code(caught.value) in errors.LOST


@pytest.mark.parametrize(
    ("guard", "service", "action", "body"),
    [
        ("check_contents", "ssm", "GetParameters", b""),
        ("check_root", "ec2", "DescribeInstances", b"<html><body>The connection was refused</body></html>"),
    ],
)
def test_the_invariant_falls_without_its_guard(
    guard: str, service: str, action: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ANSWER-1"""
    with pytest.raises(Exception):  # noqa: B017, PT011
        read(model(service, action), body)
    monkeypatch.setattr(errors, guard, lambda *_, **__: None)
    made_up = read(model(service, action), body)
    assert not made_up.get("Reservations")
    assert not made_up.get("Parameters")
