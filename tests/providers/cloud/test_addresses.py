"""The addresses that users name."""

from __future__ import annotations

from functools import partial

import pytest

from outrider.providers.cloud import addresses

sources = partial(addresses.sources, "AWS")


@pytest.mark.parametrize("text", ["", "me", "300.0.0.1", "10.0.0.0/40", "AUTO", ["10.0.0.1", "x"], []])
def test_invalid_ssh_from_is_refused(text: str | list[str]) -> None:
    with pytest.raises(ValueError, match="ssh_from"):
        sources(text)


def test_an_address_is_a_network_of_one() -> None:
    assert sources(["203.0.113.7", "2001:db8::1", "10.1.2.3/8", "203.0.113.7/32"]) == (
        "203.0.113.7/32", "2001:db8::1/128", "10.0.0.0/8")  # fmt: skip
