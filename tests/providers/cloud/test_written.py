"""The machines that a launch without an answer may have made, by the journal."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from outrider.providers.cloud import recorder
from outrider.providers.shared.journal import Intent
from outrider.providers.shared.resource_ownership import Claim


@pytest.mark.parametrize(("age_s", "unsure_s"), [(0.0, 150.0), (70.0, 80.0), (200.0, 0.0)])
def test_a_call_that_was_sent_again_until_its_client_died_is_waited_for(age_s: float, unsure_s: float) -> None:
    now, unanswered = 1000.0, Intent("pool", recorder.FLEET, "token", {}, at=1000.0 - age_s)
    record = recorder.Written(Claim("pool"), [unanswered, replace(unanswered, at=now, token="t", ids=())], now)
    (unsure,) = record.unsure({}).values()
    assert (max(0.0, unsure.seconds), unsure.count) == (unsure_s, inf)
    assert record.unsure({"token": 7.0})["token"].seconds == 7.0
