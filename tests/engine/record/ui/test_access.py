"""Without the token nothing is shown, and other sites' pages neither see nor do anything."""

from __future__ import annotations

import pytest

from outrider.engine.record.ui import access
from outrider.engine.record.ui.access import Access, AccessRequest, Verdict

TOKEN = "Zq" * 20
HERE = {"host": "127.0.0.1:8080"}
COOKIE = {"outrider-ui-8080": TOKEN}


def verdict(method: str = "GET", headers: dict[str, str] | None = None, cookies: dict[str, str] | None = None,
            token: str = "", port: int | None = 8080) -> Verdict:  # fmt: skip
    return Access(TOKEN, port).verdict(AccessRequest(method, HERE | (headers or {}), cookies or {}, token))


def test_the_token_of_the_address_enters_and_the_cookie_is_allowed() -> None:
    assert verdict(token=TOKEN) == "enter"
    assert verdict(cookies=COOKIE) == "allowed"
    assert verdict(cookies=COOKIE, headers={"host": "localhost:8080", "sec-fetch-site": "none"}) == "allowed"


@pytest.mark.parametrize(
    ("token", "cookies"),
    [
        ("", {}),
        ("wrong", {}),
        (TOKEN[:-1], {}),
        ("", {"outrider-ui-8080": ""}),
        ("", {"outrider-ui-8080": "wrong"}),
        ("", {"outrider-ui-8081": TOKEN}),
        ("\udcff", {"outrider-ui-8080": "\udcff"}),
    ],
)
def test_without_the_token_nothing_is_shown(token: str, cookies: dict[str, str]) -> None:
    """ACCESS-1."""
    assert verdict(token=token, cookies=cookies) == "no token"
    origin = {"origin": "http://127.0.0.1:8080"}
    assert verdict("POST", origin, cookies, token) == "no token"


def test_the_address_for_the_browser_leads_in_once() -> None:
    access = Access(TOKEN, 8080, "once" * 10)
    asked = AccessRequest("GET", HERE, {}, "once" * 10)
    assert access.verdict(AccessRequest("POST", HERE, {}, "once" * 10)) == "no token"
    assert access.verdict(AccessRequest("GET", HERE, {"outrider-ui-8080": "once" * 10})) == "no token"
    assert [access.verdict(asked), access.verdict(asked)] == ["enter", "no token"]
    assert access.verdict(AccessRequest("GET", HERE, {}, TOKEN)) == "enter"


def test_the_address_alone_acts_on_nothing() -> None:
    """ACCESS-1: a link or a form of another site could have it."""
    assert verdict("POST", {"origin": "http://127.0.0.1:8080"}, {}, TOKEN) == "no token"


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:8080", "127.0.0.1", "127.0.0.1:8081", "127.0.0.1:8080.evil.example",
             "localhost.:8080", "127.0.0.1@evil.example:8080", "[::2]:8080", "127.0.0.2:8080"],
)  # fmt: skip
def test_a_name_of_a_stranger_shows_nothing(host: str) -> None:
    """ACCESS-2: DNS rebinding."""
    assert verdict(headers={"host": host}, cookies=COOKIE, token=TOKEN) == "other host"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:8081"},
        {"origin": "https://127.0.0.1:8080"},
        {"origin": "http://127.0.0.1:8080.evil.example"},
        {"origin": "http://127.0.0.1:8080", "sec-fetch-site": "cross-site"},
    ],
)
def test_only_its_own_pages_may_act(headers: dict[str, str]) -> None:
    """ACCESS-2."""
    assert verdict("POST", headers, COOKIE) == "other site"


def test_its_own_pages_may_act() -> None:
    same = {"origin": "http://127.0.0.1:8080", "sec-fetch-site": "same-origin"}
    assert verdict("POST", same, COOKIE) == "allowed"


@pytest.mark.parametrize("site", ["same-site", "cross-site"])
def test_pages_of_other_ports_and_sites_are_shown_nothing(site: str) -> None:
    """ACCESS-2: the cookie is sent from other ports of the same host."""
    assert verdict(headers={"sec-fetch-site": site}, cookies=COOKIE) == "other site"


def test_behind_a_forwarded_socket_any_port_is_its_own() -> None:
    cookies = {"outrider-ui": TOKEN}
    assert verdict(headers={"host": "localhost:9000"}, cookies=cookies, port=None) == "allowed"
    assert verdict(headers={"host": "evil.example"}, cookies=cookies, port=None) == "other host"


@pytest.mark.parametrize("said", [TOKEN, "metrics" * 5])
def test_a_program_with_a_token_is_shown_the_metrics_and_nothing_else(said: str) -> None:
    """ACCESS-3."""
    access = Access(TOKEN, 8080, metrics="metrics" * 5)
    headers = HERE | {"authorization": f"Bearer {said}"}
    assert access.verdict(AccessRequest("GET", headers, {}, path="/metrics")) == "allowed"
    assert (
        access.verdict(AccessRequest("GET", headers | {"host": "evil.example:8080"}, {}, path="/metrics"))
        == "other host"
    )
    assert access.verdict(AccessRequest("POST", headers, {}, path="/metrics")) == "no token"
    for path in ("/", "/runs/x", "/metrics/", "//metrics"):
        assert access.verdict(AccessRequest("GET", headers, {}, path=path)) == "no token"
    assert access.verdict(AccessRequest("GET", HERE, {}, "metrics" * 5, path="/metrics")) == "no token"
    assert (
        access.verdict(AccessRequest("GET", HERE, {"outrider-ui-8080": "metrics" * 5}, path="/metrics")) == "no token"
    )


@pytest.mark.parametrize("said", ["", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", TOKEN, "Bearer \udcff"])
def test_without_a_token_there_are_no_metrics(said: str) -> None:
    """ACCESS-3."""
    asked = AccessRequest("GET", HERE | {"authorization": said}, {}, path="/metrics")
    assert Access(TOKEN, 8080).verdict(asked) == "no token"


def test_access_3_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """ACCESS-3."""
    monkeypatch.setattr(access, "METRICS", "/")
    with pytest.raises(AssertionError):
        test_a_program_with_a_token_is_shown_the_metrics_and_nothing_else(TOKEN)


def test_access_1_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """ACCESS-1."""
    monkeypatch.setattr(Access, "_fits", lambda self, said: True)
    with pytest.raises(AssertionError):
        test_without_the_token_nothing_is_shown("", {})


def test_access_2_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """ACCESS-2."""
    monkeypatch.setattr(Access, "_same_origin", lambda self, headers: True)
    with pytest.raises(AssertionError):
        test_only_its_own_pages_may_act({"origin": "http://evil.example"})
    monkeypatch.setattr(access, "NAMES", (*access.NAMES, "evil.example"))
    with pytest.raises(AssertionError):
        test_a_name_of_a_stranger_shows_nothing("evil.example:8080")
