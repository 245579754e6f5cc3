"""EC2's protocol: what botocore says is understood, and botocore understands what is answered."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from hypothesis import given
from hypothesis import strategies as st

from outrider.testing.clouds.aws.protocol import EC2Error, model, parse, render, render_error, render_item

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="￾￿"), min_size=1)
TAGS = st.lists(st.fixed_dictionaries({"Key": TEXT, "Value": TEXT}), min_size=1, max_size=3)
ASKED = st.fixed_dictionaries(
    {"MinCount": st.integers(1, 9), "MaxCount": st.integers(1, 9)},
    optional={
        "ImageId": TEXT,
        "DryRun": st.booleans(),
        "SecurityGroupIds": st.lists(TEXT, min_size=1, max_size=12),
        "Placement": st.fixed_dictionaries({"GroupName": TEXT}),
        "TagSpecifications": st.lists(
            st.fixed_dictionaries({"ResourceType": st.just("instance"), "Tags": TAGS}), min_size=1, max_size=2
        ),
    },
)


@given(ASKED)
def test_botocores_requests_are_parsed(asked: dict[str, Any]):
    request = create_serializer("ec2", False).serialize_to_request(asked, model().operation_model("RunInstances"))
    body = {key: str(value) for key, value in request["body"].items()}
    assert parse("RunInstances", body) == asked


@given(
    st.fixed_dictionaries(
        {
            "ReservationId": TEXT,
            "Instances": st.lists(
                st.fixed_dictionaries({"InstanceId": TEXT, "AmiLaunchIndex": st.integers(0, 99), "Tags": TAGS}),
                min_size=1,
                max_size=3,
            ),
        }
    )
)
def test_botocore_understands_what_is_answered(answer: dict[str, Any]):
    body = render("RunInstances", answer, "request")
    shape = model().operation_model("RunInstances").output_shape
    heard = create_parser("ec2").parse({"body": body, "headers": {}, "status_code": 200}, shape)
    assert {key: heard[key] for key in answer} == answer
    assert heard["ResponseMetadata"]["RequestId"] == "request"


@given(TEXT, TEXT)
def test_errors_are_understood(code: str, message: str):
    body = render_error(EC2Error(code, message), "request")
    heard = create_parser("ec2").parse({"body": body, "headers": {}, "status_code": 400}, None)
    assert (heard["Error"]["Code"], heard["Error"]["Message"]) == (code, message)


def test_a_rendered_item_is_put_in_as_it_is():
    item = {"InstanceType": "m7i.large", "BareMetal": False, "SupportedUsageClasses": ["spot", "on-demand"]}
    asked = {"InstanceTypes": [item]}
    ready = {"InstanceTypes": [render_item("InstanceTypeInfo", item)]}
    assert render("DescribeInstanceTypes", asked, "r") == render("DescribeInstanceTypes", ready, "r")


def test_unknown_action_is_refused():
    with pytest.raises(EC2Error, match="InvalidAction"):
        parse("LaunchRocket", {})
    with pytest.raises(EC2Error, match="InvalidParameterValue"):
        parse("RunInstances", {"MinCount": "many"})
    with pytest.raises(EC2Error, match="MissingParameter: The request must contain the parameter MinCount"):
        _ = parse("RunInstances", {})["MinCount"]
    with pytest.raises(KeyError, match="Colour"):
        render("RunInstances", {"Colour": "red"}, "r")
