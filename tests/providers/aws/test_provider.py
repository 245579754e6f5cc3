"""What `AWS` may be given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider import AWS
from outrider.providers.base import EntryPoints
from outrider.providers.errors import BadRequest, NotAuthorized
from outrider.providers.shared.journal import Journal, PoolOwned

ENTRY_POINTS = EntryPoints()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"address": "pubic"}, "'public' or 'private', not 'pubic'"),
        ({"zones": "us-east-1a"}, r"write AWS\(zones=\['us-east-1a'\]\)"),
        ({"subnets": []}, "leave it out"),
        ({"instance_types": [3]}, "list of names"),
        ({"ami": ""}, r"AWS\(ami=...\) is empty"),
        ({"tags": {"outrider:pool": "mine"}}, "not for users"),
        ({"tags": {"AWS:x": "mine"}}, "not for users"),
        ({"tags": {"": "x"}}, "1 to 128"),
        ({"tags": {"team": 3}}, "takes texts"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        AWS(region="us-east-1", **options)


def test_addresses_are_checked_at_once() -> None:
    with pytest.raises(ValueError, match="ssh_from"):
        AWS(ssh_from="my house")
    assert AWS(ssh_from="203.0.113.7").ssh_from == ("203.0.113.7/32",)
    assert AWS().ssh_from == "auto"


def test_an_unknown_option_names_the_one_that_was_meant() -> None:
    with pytest.raises(TypeError, match="did you mean 'instance_types'"):
        AWS(instance_type=["m7i.large"])  # type: ignore[arg-type]


def test_aws_is_a_value() -> None:
    one = AWS("us-east-1", zones=["us-east-1a", "us-east-1a"], tags={"team": "ml"})
    assert one == AWS(region="us-east-1", zones=("us-east-1a",), tags={"team": "ml"})
    assert hash(one) == hash(AWS(region="us-east-1", zones=("us-east-1a",), tags={"team": "ml"}))
    assert (one.name, one.local) == ("aws", False)


@pytest.mark.anyio
@pytest.mark.usefixtures("surroundings")
async def test_without_a_region_nothing_is_guessed() -> None:
    with pytest.raises(BadRequest, match="region"):
        async with AWS().open("p", ENTRY_POINTS):
            pass


@pytest.mark.anyio
@pytest.mark.usefixtures("surroundings")
@pytest.mark.parametrize("url", ["localhost:4566", "//localhost", "http://", "http://[::1", "ftp://localhost"])
async def test_an_endpoint_that_is_no_url_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequest, match="is no URL: write it as in http://localhost:4566"):
        async with AWS("us-east-1", endpoint_url=url).open("p", ENTRY_POINTS):
            pass
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    with pytest.raises(BadRequest, match="is no URL"):
        async with AWS("us-east-1").open("p", ENTRY_POINTS):
            pass


@pytest.mark.anyio
@pytest.mark.usefixtures("surroundings")
async def test_a_profile_that_is_not_there_is_said() -> None:
    with pytest.raises(NotAuthorized, match="profile"):
        async with AWS("us-east-1", profile="nobody").open("p", ENTRY_POINTS):
            pass


@pytest.mark.anyio
@pytest.mark.usefixtures("surroundings")
async def test_a_pool_of_that_name_that_is_open_is_not_opened_again(journal_path: Path) -> None:
    provider = AWS("us-east-1", endpoint_url="http://127.0.0.1:1")
    async with provider.open("p", ENTRY_POINTS):
        with pytest.raises(PoolOwned):
            async with provider.open("p", ENTRY_POINTS):
                pass
    assert Journal.open(journal_path).records() == []  # nothing was created, so nothing is left to look after
