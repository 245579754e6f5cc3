"""Labels as one text, for clouds whose machines have a name or a note alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.cloud import labels
from outrider.providers.errors import BadRequest

KEYS = st.sampled_from([labels.POOL, labels.OWNER, labels.LAUNCH, labels.AT, labels.UNTIL])


@given(st.dictionaries(KEYS, st.text(min_size=1, max_size=30)))
def test_what_is_written_is_read(said: dict[str, str]) -> None:
    text = labels.as_text({"Name": "outrider-pool", **said}, 10_000)
    assert labels.of_text(text) == said
    assert text.isascii()
    assert text.isprintable()


@pytest.mark.parametrize("text", ["", "my training", "pool=a", "outrider"])
def test_a_strangers_text_has_no_labels(text: str) -> None:
    assert labels.of_text(text) == {}


def test_a_text_that_is_too_long_is_refused() -> None:
    said = labels.labels_of("x" * 63, {}) | {
        labels.LAUNCH: "f" * 32,
        labels.AT: "1800000000",
        labels.UNTIL: "1800000000",
    }
    assert labels.thing("m", labels.of_text(labels.as_text(said, 512))).pool == "x" * 63
    with pytest.raises(BadRequest, match="a label has 60 characters"):
        labels.as_text(said, 60)
