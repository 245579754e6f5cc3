"""No byte a task prints can do anything to the terminal but show text."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.api.printable import clean, lines


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (b"loss 0.5\n", ["loss 0.5"]),
        (b"one\ntwo", ["one", "two"]),
        (b"\n\n", ["", ""]),
        (b"", []),
        (b"windows\r\n", ["windows"]),
        (b" 10%\r 50%\r100%\n", ["100%"]),
        (b"\x1b[31mred\x1b[0m \x1b[1;38;5;208mbold\x1b[m", ["red bold"]),
        (b"\x1b]0;title\x07after", ["after"]),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", ["link"]),
        (b"\x1b[2J\x1b[Hcleared\x1bc\x07\x08", ["cleared"]),
        ("\x9b31mc1 form".encode(), ["c1 form"]),
        (b"cut \xe2\x82 short \xff", ["cut \ufffd short \ufffd"]),
        (b"tab\tstays", ["tab\tstays"]),
        ("\u202eturned".encode(), ["turned"]),
        ("größe 你好 🚀".encode(), ["größe 你好 🚀"]),
    ],
)
def test_output_is_shown_as_text(printed: bytes, shown: list[str]) -> None:
    assert lines(printed) == shown


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="surrogatepass")))
def test_no_control_character_survives(printed: bytes) -> None:
    for line in lines(printed):
        assert not [char for char in line if unicodedata.category(char) == "Cc" and char != "\t"]


@given(st.text(alphabet=st.characters(blacklist_categories=["Cc", "Cf", "Cs"]), max_size=100))
def test_ordinary_text_is_untouched(text: str) -> None:
    assert clean(text) == text
