"""What a pool makes besides machines is removed: what is in use still is waited for."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
import trio.testing

from outrider.providers.cloud.calls import CallRefused
from outrider.providers.cloud.teardown import leftover
from outrider.providers.errors import NotAuthorized, ProviderError
from outrider.providers.shared.resource_ownership import Claim, Thing

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


class Keys:
    """Keys of pools, by their names. Each is in use until a time."""

    def __init__(self, **until: float) -> None:
        self.until = until
        self.error: ProviderError | None = None

    async def shown(self, pool: str) -> list[Thing]:
        return [Thing(each, pool=pool, launch="token") for each in self.until]

    async def delete(self, name: str) -> None:
        if self.error is not None:
            raise self.error
        if name not in self.until:
            raise ProviderError("there is none", code="unknown")
        if anyio.current_time() < self.until[name]:
            raise ProviderError("it is in use", code="used")
        del self.until[name]

    def kind(self, used_s: float = 60.0) -> Any:
        return leftover(
            "ssh-key",
            shown=self.shown,
            delete=self.delete,
            is_unknown=lambda error: error.code == "unknown",
            is_used=lambda error: error.code == "used",
            used_s=used_s,
        )


MINE = Claim("p", unanswered=frozenset({"token"}))


async def test_what_is_in_use_is_removed_when_it_is_not_any_more() -> None:
    began = anyio.current_time()
    keys = Keys(a=began, b=began + 30)
    removed = await keys.kind().remove(MINE, ["gone"])
    assert (removed.gone, removed.left, removed.errors) == (("a", "b"), (), ())
    assert 30 <= anyio.current_time() - began < 35


async def test_what_stays_in_use_is_named_and_stops_no_other() -> None:
    now = anyio.current_time()
    removed = await Keys(a=now + 100, b=now).kind(20.0).remove(MINE, [])
    assert (removed.gone, removed.left) == (("b",), ("a",))
    (error,) = removed.errors
    assert isinstance(error, CallRefused)
    assert "something uses the ssh key a still" in str(error)
    assert error.code == "used"


async def test_a_refusal_is_not_waited_for() -> None:
    began = anyio.current_time()
    keys = Keys(a=began)
    keys.error = NotAuthorized("no")
    removed = await keys.kind().remove(MINE, [])
    assert (removed.gone, removed.left, removed.errors) == ((), ("a",), (keys.error,))
    assert anyio.current_time() == began


async def test_anothers_key_is_left_alone() -> None:
    keys = Keys(a=0.0)
    assert not (await keys.kind().remove(Claim("p"), [])).gone
    assert keys.until
