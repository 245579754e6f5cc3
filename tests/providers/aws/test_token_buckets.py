"""How often a call may be made."""

from __future__ import annotations

import pytest

from outrider.providers.aws.errors import bucket_for


@pytest.mark.parametrize(
    ("operation", "filtered", "size"),
    [
        ("DescribeInstances", True, (100, 20)),
        ("DescribeInstances", False, (50, 10)),
        ("DescribeInstanceTypes", False, (100, 20)),
        ("GetSpotPlacementScores", True, (100, 20)),
        ("CreateFleet", True, (50, 5)),
        ("RunInstances", True, (5, 2)),
        ("TerminateInstances", True, (100, 5)),
        ("AuthorizeSecurityGroupIngress", True, (50, 5)),
    ],
)
def test_buckets_are_as_ec2_documents_them(operation: str, filtered: bool, size: tuple[float, float]) -> None:
    _, ours = bucket_for(operation, filtered=filtered)
    assert (ours.capacity, ours.per_s) == size


def test_unfiltered_calls_have_a_bucket_of_their_own() -> None:
    assert bucket_for("DescribeVolumes", filtered=True)[0] != bucket_for("DescribeVolumes", filtered=False)[0]
