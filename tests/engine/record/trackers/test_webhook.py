"""Webhooks: what is told, signed and retried, and once at a receiver that remembers keys."""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import OpenerDirector

import pytest
from tracker_servers import Answer, Hook, serving

from outrider import (
    Local,
    Pool,
    Secret,
    compute,
    errors,
    instance_info,
    log_artifact,
    log_metrics,
    log_params,
    trackers,
)
from outrider.engine.record.runs.names import runs_folder
from outrider.engine.record.trackers import http_calls
from outrider.engine.record.trackers.http_calls import Calls


@compute
def train(steps: int) -> None:
    if instance_info().rank == 0:
        log_params({"lr": 0.1})
        Path("best.txt").write_text("weights")
        log_artifact("best.txt")
    for step in range(steps):
        log_metrics({"loss": float("inf") if step == 1 else 1 / (step + 1)}, step=step)


def test_a_run_is_told_once_though_the_receiver_fails(state: Path) -> None:
    hook, failures = Hook(), iter(range(5))

    def fails(method: str, path: str) -> None:
        if (number := next(failures, None)) is not None:
            raise Answer(*[(500, "no"), (429, "slower", {"Retry-After": "0"}), (503, "no")][number % 3])

    hook.fails = fails
    with serving(hook):
        tracker = trackers.Webhook(f"{hook.address}/hook?of=me", secret=Secret("shh-shh"), headers={"X-Of": "me"})
        with Pool(provider=Local(), nodes=2, run="told", trackers=[tracker], flush_timeout=100) as pool:
            train(20) @ pool
    assert set(hook.times.values()) == {1}
    assert hook.kinds()[0] == "begun"
    assert hook.kinds()[-1] == "ended"
    assert {"params", "metrics", "artifact", "event"} <= {*hook.kinds()}
    by_kind = {said["kind"]: said for said in hook.taken.values()}
    (record,) = runs_folder().glob("*-told-*")
    assert by_kind["begun"]["run"] == {"id": record.name, "name": "told"}
    assert by_kind["params"]["params"] == {"lr": 0.1}
    assert by_kind["artifact"]["artifact"] | {"at": 0} == {
        "name": "best.txt",
        "path": "artifacts/best.txt",
        "type": "text/plain",
        "size_bytes": 7,
        "sha256": hashlib.sha256(b"weights").hexdigest(),
        "at": 0,
        "rank": 0,
    }
    assert by_kind["ended"]["state"] == "finished"
    points = [point for said in hook.taken.values() if said["kind"] == "metrics" for point in said["metrics"]]
    assert [(point["step"], point["value"]) for point in points[:3]] == [(0, 1.0), (1, "inf"), (2, 1 / 3)]
    assert len(points) == 20
    for _, path, headers, body in hook.requests:
        assert path == "/hook?of=me"
        assert headers["x-of"] == "me"
        signed = headers["outrider-timestamp"].encode() + b"." + body
        assert headers["outrider-signature"] == "v1=" + hmac.new(b"shh-shh", signed, hashlib.sha256).hexdigest()
        assert abs(float(headers["outrider-timestamp"]) - time.time()) < 60
    kept = [path.read_bytes() for path in record.rglob("*") if path.is_file()]
    assert not any(b"shh-shh" in content or b"of=me" in content for content in kept)  # no secret is in the record


def test_what_the_receiver_will_never_take_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    hook = Hook()

    def fails(method: str, path: str) -> None:
        if b'"kind": "params"' in hook.requests[-1][3]:
            raise Answer(422, "no params please")

    hook.fails = fails
    with (
        serving(hook),
        Pool(
            provider=Local(),
            run="refused",
            trackers=[trackers.Webhook(hook.address, metrics=False)],
            flush_timeout=100,
            console="plain",
        ) as pool,
    ):
        train(3) @ pool
    assert "metrics" not in hook.kinds()
    assert hook.kinds()[-1] == "ended"
    told = capfd.readouterr().err
    assert "webhook lacks something of this run (params: 127.0.0.1:" in told
    assert "answered 422 no params please)" in told


@pytest.mark.parametrize(
    "url",
    ["ftp://host", "host/hook", "", 3, "http://host:99999/hush", "http://[::1/hush", "http://host/hush hush",
     "http://host/hush\n", "http://host/hush\u20ac"],
)  # fmt: skip
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(errors.SpecError) as refused:
        trackers.Webhook(url)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("token", ["hush\n", "hush\r\nX: y", "hush\u20ac"])
def test_a_secret_that_no_header_takes_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(errors.SpecError, match="strip") as refused:
        trackers.Webhook("http://host", headers={"Authorization": Secret(token)})
    assert "hush" not in str(refused.value)
    with pytest.raises(errors.SpecError, match="strip") as refused:
        trackers.MLflow("http://host", token=Secret(token))
    assert "hush" not in str(refused.value)
    with pytest.raises(errors.SpecError, match="names of HTTP headers"):
        trackers.Webhook("http://host", headers={"X Y": "z"})


def test_what_http_itself_refuses_shows_no_secret() -> None:
    for calls, path in (
        (Calls("http://127.0.0.1:9", {"Authorization": "Bearer hush\n"}), "/x"),
        (Calls("http://127.0.0.1:9", {}), "/hush hush"),
    ):
        with pytest.raises(trackers.Refused, match=r"127\.0\.0\.1:9") as refused:
            calls.send("POST", path, b"")
        assert "hush" not in str(refused.value)


def test_a_redirect_is_told_and_not_followed() -> None:
    hook = Hook()

    def fails(method: str, path: str) -> None:
        raise Answer(307, "elsewhere", {"Location": f"{hook.address}/elsewhere"})

    hook.fails = fails
    with serving(hook), pytest.raises(trackers.Refused, match="307 elsewhere: redirects are not followed"):
        Calls(hook.address, {}).send("POST", "/hook", b"")
    assert [path for _, path, _, _ in hook.requests] == ["/hook"]


def test_certificates_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(trackers.Refused, match=r"none\.pem' cannot be used \(No such file"):
        Calls("https://127.0.0.1:9", {}, cafile=str(tmp_path / "none.pem"))


def test_an_answer_that_has_no_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_calls, "ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                for _ in range(1000):
                    connection.sendall(b" ")
                    time.sleep(0.01)

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(trackers.Away, match=r"has not ended its answer for 0\.1 s"):
            Calls(f"http://127.0.0.1:{server.getsockname()[1]}", {}).send("GET", "/", None)
        thread.join()


def test_a_certificate_that_is_not_trusted_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ssl.SSLCertVerificationError(1, "of which")
    error.verify_message = "self-signed certificate"

    def fails(*_: object, **__: object) -> None:
        raise URLError(error)

    monkeypatch.setattr(OpenerDirector, "open", fails)
    with pytest.raises(trackers.Refused, match=r"of host is not trusted here \(self-signed certificate\)"):
        Calls("https://host", {}).send("GET", "/", None)


def test_options_of_pools_that_mean_nothing_are_refused_with_what_is_meant() -> None:
    with pytest.raises(errors.SpecError, match="flush_timeout takes seconds, 0 or more, not -1"):
        Pool(provider=Local(), flush_timeout=-1)
    with pytest.raises(errors.SpecError, match=r"not 'mlflow': a name is for outrider\.toml"):
        Pool(provider=Local(), trackers=["mlflow"])  # type: ignore[list-item]
