"""Options that all clouds check alike."""

from __future__ import annotations

import re

import pytest

from outrider import GCP
from outrider.providers.cloud.provider import check_region


@pytest.mark.parametrize(
    ("region", "said"),
    [
        ("us-east-1a", "it looks like a zone: AWS(region='us-east-1', zones=['us-east-1a'])"),
        ("us-central1", "its regions look like us-east-1"),
        ("atlantis", "its regions look like us-east-1"),
    ],
)
def test_a_region_of_another_form_is_refused(region: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"AWS(region={region!r}) is no region of AWS: {said}")):
        check_region("AWS", region, None)


@pytest.mark.parametrize("region", [None, "us-east-1", "us-gov-west-1", "ap-southeast-7", "eusc-de-east-1"])
def test_regions_of_this_form_are_taken_also_new_ones(region: str | None) -> None:
    check_region("AWS", region, None)


@pytest.mark.parametrize(("region", "good"), [("us-central1", True), ("us-east-1", False), ("us-central1-a", False)])
def test_regions_of_google_have_a_form_of_their_own(region: str, good: bool) -> None:
    if good:
        GCP(region)
    else:
        with pytest.raises(ValueError, match="is no region of GCP"):
            GCP(region)
