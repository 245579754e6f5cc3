"""Which of several errors is told, what a code means, and what is never repeated."""

from __future__ import annotations

from itertools import permutations

import pytest

from outrider.providers.cloud.calls import (
    CallRefused,
    is_lost,
    meaning,
    most_telling,
    quoting,
    redacted,
    unless_unknown,
)
from outrider.providers.errors import BadRequest, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded


def test_a_quota_comes_before_missing_capacity_and_both_are_told() -> None:
    capacity = NoCapacity("AWS has none", retry_after_s=10.0, code="InsufficientInstanceCapacity")
    quota = QuotaExceeded("the quota is used up", code="VcpuLimitExceeded")
    refused = BadRequest("not with this type", code="Unsupported")
    for errors in permutations([capacity, quota, refused]):
        told = most_telling(errors)
        assert isinstance(told, QuotaExceeded)
        assert told.code == "VcpuLimitExceeded"
        assert told.retry_after_s == 10.0  # the capacity may come back
        assert "the quota is used up; also: AWS has none" in str(told)


def test_without_rights_trying_again_is_of_no_use() -> None:
    told = most_telling([NoCapacity("none", retry_after_s=1.0), NotAuthorized("no right")])
    assert isinstance(told, NotAuthorized)
    assert told.retry_after_s is None
    one: ProviderError = most_telling([NoCapacity("none", retry_after_s=1.0)])
    assert (type(one), str(one), one.retry_after_s) == (NoCapacity, "none", 1.0)


def test_the_first_meaning_that_matches_a_whole_code_holds() -> None:
    table = ((NoCapacity, {"full|no-room": "there is no room"}), (BadRequest, {"full.*": "not as it is", "x": "odd"}))
    found = [meaning(code, table) for code in ("full", "fuller", "x", "xx")]
    assert [each and (each.kind, each.sentence) for each in found] == [
        (NoCapacity, "there is no room"),
        (BadRequest, "not as it is"),
        (BadRequest, "odd"),
        None,
    ]


def test_a_call_is_lost_unless_the_cloud_refused_it() -> None:
    assert is_lost(CallRefused("no answer", retry_after_s=1.0))
    assert not is_lost(CallRefused("no"))
    assert not is_lost(NoCapacity("none", retry_after_s=1.0))


@pytest.mark.parametrize("secret", ["k" * 40, "Bearer" + "a1" * 60])
def test_what_may_be_a_credential_is_not_repeated(secret: str) -> None:
    assert secret not in redacted(f"refused with {secret} in it")
    assert "me:mine" not in redacted("refused at https://me:mine@host/")


def test_the_clouds_words_are_quoted_once_and_shortened() -> None:
    assert quoting("it failed", "code", "") == "it failed (code)"
    assert quoting("it failed", "code", "try later. ") == "it failed (code: try later)"
    assert len(redacted("word " * 500)) < 410


@pytest.mark.anyio
async def test_what_the_cloud_does_not_know_is_nothing_and_another_refusal_is_raised() -> None:
    async def call(error: ProviderError | None) -> str:
        if error is not None:
            raise error
        return "it"

    assert await unless_unknown(call(None), "unknown") == "it"
    assert await unless_unknown(call(ProviderError("there is none", code="gone")), "unknown", "gone") is None
    with pytest.raises(NotAuthorized):
        await unless_unknown(call(NotAuthorized("no right", code="refused")), "unknown")


def test_kind_of_several_errors_is_that_of_all() -> None:
    """FLEET-14"""
    away = [NoCapacity(f"read udp 10.0.0.1:{port}", kind=f"read udp 10.0.0.1:{port}") for port in (1, 22)]
    assert away[0].kind == away[1].kind != ""
    assert most_telling(away).kind == f"{away[0].kind}; {away[0].kind}"
    assert most_telling([away[0], NoCapacity("none is left")]).kind == ""
