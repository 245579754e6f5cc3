"""What `Local` is given is checked at once."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from outrider.providers.errors import BadRequest
from outrider.providers.local.provider import Local

pytestmark = pytest.mark.anyio


def test_an_unknown_option_is_named_with_the_one_that_was_meant():
    with pytest.raises(TypeError, match="Local has no option 'sate': did you mean 'state'"):
        Local(sate="/tmp")
    with pytest.raises(TypeError, match="no option 'region': it has state, shared_memory"):
        Local(region="eu")


def test_it_is_a_value(tmp_path):
    assert Local(state=str(tmp_path)) == Local(state=tmp_path)
    assert len({Local(), Local()}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        Local().shared_memory = False


async def test_other_systems_are_refused(monkeypatch, provider, embedding):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(BadRequest, match=r"need Linux .*darwin"):
        async with provider.open("p", embedding):
            pytest.fail("opened")


async def test_a_state_directory_that_cannot_be_is_refused_with_what_to_do(tmp_path, embedding):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadRequest, match=r"Local\(state="):
        async with Local(state=tmp_path / "file").open("p", embedding):
            pytest.fail("opened")
