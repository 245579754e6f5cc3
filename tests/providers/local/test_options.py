"""What `Local` is given is checked at once."""

from __future__ import annotations

import dataclasses
import errno
import os
import sys

import pytest

from outrider import OutriderError
from outrider.engine.serialization import error_translation
from outrider.providers.base import LaunchRequest
from outrider.providers.errors import BadRequest, JournalError
from outrider.providers.local import computer, state
from outrider.providers.local.provider import Local

pytestmark = pytest.mark.anyio


def test_an_unknown_option_is_named_with_the_one_that_was_meant():
    with pytest.raises(TypeError, match="Local has no option 'sate': did you mean 'state'"):
        Local(sate="/tmp")
    with pytest.raises(TypeError, match="no option 'colour': it has as_remote, shared_memory, state"):
        Local(colour="red")


def test_it_is_a_value(tmp_path):
    assert Local(state=str(tmp_path)) == Local(state=tmp_path)
    assert len({Local(), Local()}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        Local().shared_memory = False


async def test_other_systems_are_refused(monkeypatch, provider, entry_points):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(BadRequest, match=r"need Linux .*darwin"):
        async with provider.open("p", entry_points):
            pytest.fail("opened")


async def test_a_state_directory_that_cannot_be_is_refused_with_what_to_do(tmp_path, entry_points):
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=r"Not a directory.*Local\(state="):
        async with Local(state=tmp_path / "file").open("p", entry_points):
            pytest.fail("opened")


async def test_a_state_directory_that_nodes_cannot_be_told_of_is_refused(tmp_path, entry_points):
    with pytest.raises(BadRequest, match=r"no text in UTF-8: name another directory"):
        async with Local(state=f"{tmp_path}/\udcff").open("p", entry_points):
            pytest.fail("opened")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="state can be the path of no directory"):
        Local(state="a\0b")


@pytest.mark.parametrize("place", ["", "local"])
async def test_a_state_directory_that_others_write_in_is_refused(tmp_path, entry_points, place):
    (tmp_path / "state" / "local").mkdir(mode=0o700, parents=True)
    (tmp_path / "state" / place).chmod(0o777)
    with pytest.raises(JournalError, match=r"is not used, as others may write in it \(mode 777\): .*chmod 700"):
        async with Local(state=tmp_path / "state").open("p", entry_points):
            pytest.fail("opened")


async def test_a_full_disk_is_no_fault_of_the_specification(tmp_path, monkeypatch, entry_points):
    """And not for ever: there is room again, and the same pool opens."""

    def full(folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    with monkeypatch.context() as disk:
        disk.setattr(state, "make_private", full)
        with pytest.raises(JournalError, match=r"No space left on device.*make room there") as caught:
            async with Local(state=tmp_path).open("p", entry_points):
                pytest.fail("opened")
    assert type(error_translation.provider_error(caught.value)) is OutriderError
    assert "Nothing was created" in str(error_translation.provider_error(caught.value))
    async with Local(state=tmp_path).open("p", entry_points):
        pass


async def test_a_name_is_one_pools_at_a_time_and_a_dead_ones_is_free(tmp_path, entry_points):
    provider = Local(state=tmp_path)
    async with provider.open("mine", entry_points):
        with pytest.raises(BadRequest, match="a pool mine is open already"):
            async with provider.open("mine", entry_points):
                pytest.fail("opened")
    (tmp_path / "local" / "mine").mkdir()
    (tmp_path / "local" / "mine" / "owner").touch()  # nobody holds its lock
    async with provider.open("mine", entry_points):
        pass
    assert list((tmp_path / "local").iterdir()) == []


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"vcpus": 100_000}, "vcpus=100000, and this computer has"),
        ({"memory_gb": 1e6}, "memory_gb=1e"),
        ({"disk_gb": 10**6}, "has room for"),
        ({"architecture": "arm64"}, "and this computer is x86_64"),
        ({"interconnect": "efa"}, "leave it out"),
    ],
)
async def test_more_than_this_computer_has_is_refused(tmp_path, entry_points, monkeypatch, wanted, said):
    monkeypatch.setattr(computer.platform, "machine", lambda: "x86_64")
    async with Local(state=tmp_path).open("p", entry_points) as fleet:
        with pytest.raises(BadRequest, match=said):
            await fleet.launch(LaunchRequest("key", 1, **wanted), 1)


def test_what_this_computer_has_is_enough(tmp_path):
    computer.refuse_too_much(LaunchRequest("key", 1, vcpus=1, memory_gb=0.5, disk_gb=1), tmp_path)
