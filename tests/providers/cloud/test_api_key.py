"""An API key of the user's is read from a variable, from a file that is named, or from the one that is usual."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.providers.cloud.account import ApiKeys
from outrider.providers.errors import NotAuthorized


def read(environment: dict[str, str], *, key_file: str | None, usual: str = "") -> str:
    keys = ApiKeys(provider="Sky", name="sky", variable="SKY_KEY", page="https://sky.example/keys", usual=usual)
    return keys.read(key_file, environment)


@pytest.mark.parametrize("text", ["secret_a.b\n", "api_key = secret_a.b\n", "# mine\napi_key=secret_a.b"])
def test_a_key_is_read_from_a_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    assert read({"SKY_KEY": "another"}, key_file=str(file)) == "secret_a.b"
    assert read({"SKY_KEY": " another "}, key_file=None, usual=str(file)) == "another"
    assert read({}, key_file=None, usual=str(file)) == "secret_a.b"


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"two words"])
def test_without_a_key_the_next_step_is_told(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(NotAuthorized, match=r"Sky\(key_file=.*API key"):
        read({}, key_file=str(file))
    with pytest.raises(NotAuthorized, match=r"make one at https://sky\.example/keys, and set SKY_KEY to it"):
        read({"SKY_KEY": " "}, key_file=None, usual=str(tmp_path / "none"))
