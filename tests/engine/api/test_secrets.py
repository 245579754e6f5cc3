"""A secret is used, and never shown."""

import copy
import logging
import pickle
from dataclasses import asdict, dataclass

import pytest

from outrider import Secret, SpecError
from outrider.engine.api import secrets
from outrider.engine.api.secrets import Scrubber, allow_secrets, revealed_env, secrets_in

CANARY = "canary/0123+456 789"


def test_it_hides_wherever_it_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret(CANARY)
    logging.getLogger().error("%s %r", secret, {"a": [secret]})
    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!s:>20}",
        repr([secret]),
        str(ValueError(secret)),
        caplog.text,
    ]
    assert not [text for text in shown if "canary" in text]
    assert secret.reveal() == CANARY


def test_it_says_where_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", CANARY)
    assert repr(Secret.env("A_TOKEN")) == "Secret.env('A_TOKEN')"
    assert Secret.env("A_TOKEN") == Secret(CANARY)
    assert {Secret.env("A_TOKEN"), Secret(CANARY)} == {Secret(CANARY)}


@pytest.mark.parametrize("value", ["", "a\0b", None, 3])
def test_what_is_no_secret_is_refused(value: object) -> None:
    with pytest.raises(SpecError, match="not empty"):
        Secret(value)  # type: ignore[arg-type]


def test_a_variable_that_is_not_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("A_TOKEN", raising=False)
    with pytest.raises(SpecError, match="A_TOKEN is not set"):
        Secret.env("A_TOKEN")
    monkeypatch.setenv("A_TOKEN", "")
    with pytest.raises(SpecError, match="A_TOKEN is empty"):
        Secret.env("A_TOKEN")
    with pytest.raises(SpecError, match="5 is not set"):
        Secret.env(5)  # type: ignore[arg-type]


def test_it_is_pickled_on_the_way_to_a_node_and_nowhere_else() -> None:
    with pytest.raises(TypeError, match="on the way to a node"):
        pickle.dumps(Secret(CANARY))
    with allow_secrets():
        data = pickle.dumps(Secret(CANARY))
    assert pickle.loads(data) == Secret(CANARY)
    assert f"{Secret.__module__}.{Secret.__qualname__}" == secrets.SECRET


def test_it_can_be_copied() -> None:
    @dataclass
    class Holds:
        secret: Secret

    secret = Secret(CANARY)
    assert copy.deepcopy([secret]) == [copy.copy(secret)]
    assert asdict(Holds(secret)) == {"secret": secret}


def test_texts_are_scrubbed_also_of_what_is_quoted_for_a_url() -> None:
    scrub = Scrubber([Secret(CANARY), "canary", "abc"])
    said = scrub(f"{CANARY}, https://u:canary%2F0123%2B456%20789@host/ abc")
    assert said == "****, https://u:****@host/ abc"  # what is shorter is found everywhere by chance


def test_texts_are_scrubbed_line_by_line_too() -> None:
    """As of a key with several lines, or a token read from a file with its newline: programs print lines."""
    scrub = Scrubber([Secret("-----BEGIN KEY-----\nMIIEvQIBADAN\n}\n"), Secret("token-of-a-file\n")])
    assert scrub("MIIEvQIBADAN") == "****"
    assert scrub("token-of-a-file!") == "****!"
    assert scrub("{'KEY': '-----BEGIN KEY-----\\nMIIEvQIBADAN\\n}\\n'}") == "{'KEY': '****\\n****\\n}\\n'}"


def test_secrets_are_found_and_revealed() -> None:
    env = {"PLAIN": "1", "TOKEN": Secret(CANARY)}
    assert revealed_env(env) == {"PLAIN": "1", "TOKEN": CANARY}
    assert secrets_in(env, ["x", (Secret("other"),)]) == [Secret(CANARY), Secret("other")]
