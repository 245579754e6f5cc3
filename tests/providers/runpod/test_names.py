"""A pod's name says whose it is, and is all that says it."""

from __future__ import annotations

import getpass
import socket

import pytest

from outrider.providers.runpod.cloud import name_of, thing
from outrider.providers.shared.resource_ownership import Thing

TOKEN = "0123456789abcdef" * 2


def test_a_name_tells_pool_owner_and_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(socket, "gethostname", lambda: "box.example")
    name = name_of("train-1.x_y", TOKEN)
    assert name == f"outrider:train-1.x_y:ada@box.example:{TOKEN}"
    assert thing({"id": "p", "name": name}) == Thing("p", pool="train-1.x_y", owner="ada@box.example", launch=TOKEN)


def test_a_long_owner_keeps_the_computer_and_the_name_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "u" * 150)
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 64)
    name = name_of("p" * 63, TOKEN)
    assert len(name) <= 187
    assert thing({"id": "p", "name": name}).owner.partition("@")[2] == "h" * 64


@pytest.mark.parametrize(
    "name", ["my-pod", "outrider:p:o@h", f"outrider:p:o@h:{TOKEN}x", f"outrider:a b:o@h:{TOKEN}", "", "outrider:::"]
)
def test_any_other_name_is_nobodys(name: str) -> None:
    assert thing({"id": "p", "name": name}) == Thing("p")
