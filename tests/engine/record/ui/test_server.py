"""`outrider ui` over HTTP: who gets what, live streams, readers that do not read, and its end."""

from __future__ import annotations

import http.client
import json
import re
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from outrider.engine.record.runs.reader import Run, run_of
from outrider.engine.record.ui.documents import is_there, links_of
from outrider.providers.shared.sockets import listening

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from living import Living, living
from records import training
from served import PATIENCE_S, Ui, serving


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return training(tmp_path_factory.mktemp("whole"), nodes=2, losses=1, steps=60, every=10)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def run(whole: Run, state: Path) -> Iterator[Living]:
    with living(whole, state / "runs") as made:
        made.grow(0.5)
        yield made


@pytest.fixture(scope="module")
def ui(state: Path, run: Living) -> Iterator[Ui]:
    with serving(state) as served:
        yield served


def test_without_the_token_there_is_no_page(ui: Ui, run: Living) -> None:
    for path in ("/", "/stream", f"/runs/{run.run.id}", f"/runs/{run.run.id}/stream", "/runs/none", "/?token=wrong"):
        answer = ui.ask(path, cookie=False)
        assert (answer.status, run.run.id in answer.text) == (403, False)
        assert "has the token" in answer.text
    assert ui.ask(f"/runs/{run.run.id}/stop", "POST", cookie=False).status == 403


def test_the_printed_address_sets_a_cookie_that_scripts_cannot_read(ui: Ui) -> None:
    answer = ui.ask(f"/?token={ui.token}", cookie=False)
    assert answer.status == 200
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{ui.cookie};")
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip().lower() for part in cookie.split(";")}
    assert 'content="0; url=/"' in answer.text
    assert ui.token not in answer.text


def test_another_host_or_site_gets_nothing(ui: Ui, run: Living) -> None:
    assert ui.ask("/", host="evil.example").status == 403
    assert ui.ask("/", host=f"evil.example:{ui.port}").status == 403
    stop = f"/runs/{run.run.id}/stop"
    assert ui.ask(stop, "POST").status == 403
    assert ui.ask(stop, "POST", origin="http://evil.example").status == 403
    assert ui.ask("/", sec_fetch_site="cross-site").status == 403
    assert run.run.owner == "alive"


def test_every_answer_forbids_what_pages_do_not_need(ui: Ui, run: Living) -> None:
    for path, cookie in ((f"/runs/{run.run.id}", True), ("/", True), ("/", False), ("/none", True)):
        headers = ui.ask(path, cookie=cookie).headers
        assert headers["content-security-policy"] == "frame-ancestors 'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', ui.ask(f"/runs/{run.run.id}").text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'self';" in policy[1]
    assert "unsafe" not in policy[1]


@pytest.mark.parametrize(
    "path", ["/runs/none", "/runs/..%2f..%2fetc", "/runs/20261125-083320-other-4f8a", "/etc/passwd"]
)
def test_what_is_no_run_is_not_found(ui: Ui, path: str) -> None:
    assert ui.ask(path).status == 404
    assert ui.ask(f"{path}/stream").status == 404


def test_there_is_no_other_request(ui: Ui, run: Living) -> None:
    assert ui.act(f"/runs/{run.run.id}/sleep").status == 404
    assert ui.act(f"/runs/{run.run.id}").status == 405
    assert ui.ask(f"/runs/{run.run.id}/stop").status == 405


def test_a_scraper_has_a_token_of_its_own(run: Living, state: Path) -> None:
    pytest.importorskip("prometheus_client")  # of the group dev, which CI installs
    path = state / "token"
    with serving(state, "--metrics-token", str(path)) as ui:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        token = path.read_text().strip()
        answer = ui.ask("/metrics", cookie=False, authorization=f"Bearer {token}")
        assert (answer.status, f'run="{run.run.id}"' in answer.text) == (200, True)
        assert answer.headers["content-type"].startswith("text/plain")
        assert ui.ask("/metrics", cookie=False, authorization=f"Bearer {ui.token}").status == 200
        assert ui.ask("/metrics").status == 200, "a browser shows it too"
        for bearer in ("", "Bearer wrong"):
            assert ui.ask("/metrics", cookie=False, authorization=bearer).status == 403
        assert ui.ask("/", cookie=False, authorization=f"Bearer {token}").status == 403
    with serving(state, "--metrics-token", str(path)):
        assert path.read_text().strip() == token


def test_a_trace_can_be_downloaded_and_no_other_file(ui: Ui, run: Living) -> None:
    folder = run.directory / "profiles"
    folder.mkdir()
    for name in ("now.json.gz", "now.json"):
        (folder / name).write_text("the trace")
    path = f"/runs/{run.run.id}/profiles"
    answer = ui.ask(f"{path}/now.json.gz")
    assert (answer.status, answer.text, answer.headers["content-type"]) == (200, "the trace", "application/gzip")
    assert answer.headers["content-disposition"] == f'attachment; filename="{run.run.id}-now.json.gz"'
    for other in ("now.json", "none.json.gz", "..%2fstatus.json", "%2e%2e/status.json"):
        assert ui.ask(f"{path}/{other}").status == 404
    assert ui.ask(f"{path}/now.json.gz", cookie=False).status == 403


def test_an_artifact_is_downloaded_and_never_shown(ui: Ui, run: Living) -> None:
    folder = run.directory / "artifacts"
    folder.mkdir(exist_ok=True)
    (folder / "notes.html").write_text("<script>alert(1)</script>")
    path = f"/runs/{run.run.id}/artifacts/notes.html"
    answer = ui.ask(path)
    assert (answer.status, answer.text) == (200, "<script>alert(1)</script>")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"] == f'attachment; filename="{run.run.id}-notes.html"'
    assert answer.headers["content-length"] == str(len(answer.text))
    assert ui.ask(path, cookie=False).status == 403
    assert ui.ask(path, range="bytes=0-7").text == "<script>"


def test_nothing_but_the_records_own_artifacts_is_given_out(ui: Ui, run: Living, tmp_path: Path) -> None:
    (folder := run.directory / "artifacts").mkdir(exist_ok=True)
    (folder / ".hidden").write_text("it")
    (folder / "folder").mkdir()
    (folder / "folder" / "within").write_text("it")
    (folder / "link").symlink_to(run.directory / "status.json")
    paths = [f"artifacts/{each}" for each in (".hidden", "folder", "folder/within", "link", "none")]
    paths += ["artifacts/../status.json", "artifacts/..%2fstatus.json", "%2e%2e/x", ".%2f/status.json", "logs/x.log"]
    for path in paths:
        assert ui.ask(f"/runs/{run.run.id}/{path}").status == 404, path
    (record := tmp_path / "record").mkdir()
    (record / "artifacts").symlink_to(folder)
    (folder / "best.pt").write_text("it")
    assert is_there(run.run, "artifacts/best.pt")
    assert not is_there(run_of(record), "artifacts/best.pt"), "the folder is a link out of the record"
    assert links_of(run.run)("artifacts/best.pt") == f"/runs/{run.run.id}/artifacts/best.pt"
    assert links_of(run.run)("artifacts/../best.pt") is None


def test_an_act_says_what_came_of_it(ui: Ui, run: Living) -> None:
    def refuse() -> None:
        connection, _ = control.accept()
        with connection:
            asked.append(connection.recv(1000))
            connection.sendall(b'{"refused": "not now"}\n')

    asked: list[bytes] = []
    with listening(run.directory / "control") as control:
        owner = threading.Thread(target=refuse)
        owner.start()
        answer = ui.act(f"/runs/{run.run.id}/stacks")
        owner.join()
    (run.directory / "control").unlink()
    assert asked == [b'{"request": "stacks"}\n']
    assert (answer.status, "refuses: not now" in json.loads(answer.text)["said"]) == (200, True)


def test_a_stop_that_takes_long_does_not_hold_up_the_end(whole: Run, tmp_path: Path) -> None:
    with living(whole, tmp_path / "runs") as made, serving(tmp_path) as ui:
        with listening(made.directory / "control") as control:
            asking = threading.Thread(target=_ask_in_vain, args=(ui, f"/runs/{made.run.id}/stop"))
            asking.start()
            connection, _ = control.accept()
            began = time.monotonic()
            code, errors = ui.end()
            assert code == 0
            assert "Traceback" not in errors
            assert time.monotonic() - began < PATIENCE_S
            connection.close()
        asking.join()


def _ask_in_vain(ui: Ui, path: str) -> None:
    with suppress(OSError, http.client.HTTPException):
        ui.act(path)


def test_the_list_has_all_runs_and_goes_on(whole: Run, tmp_path: Path) -> None:
    with living(whole, tmp_path / "runs") as made, serving(tmp_path) as ui:
        page = ui.ask("/").text
        assert f'href="/runs/{made.run.id}"' in page
        assert "running" in page
        stream = ui.stream("/stream", "x-0")
        for _, message in stream.messages():
            if "running" not in message["sections"]["runs"]:
                assert "ended" in message["sections"]["runs"]
                break
            made.end()
        stream.close()


def test_a_page_goes_on_with_its_run_and_ends_as_the_report(whole: Run, tmp_path: Path) -> None:
    with living(whole, tmp_path / "runs") as made, serving(tmp_path) as ui:
        made.grow(0.5)
        path = f"/runs/{made.run.id}"
        page = ui.ask(path).text
        cursor = re.search(r'"from":"([^"]+)"', page)
        assert cursor is not None
        stream, kinds = ui.stream(f"{path}/stream", cursor[1]), set[str]()
        made.grow(0.7)
        for _, message in stream.messages():
            kinds |= message.keys()
            if {"tails", "logs"} & message.keys():
                made.end()
        assert "end" in kinds
        assert stream.answer.readline() == b"", "the server ends it"
        stream.close()
        page = ui.ask(path).text
        assert '"live":' not in page
        assert "ended well" in page


def test_a_reader_comes_back_where_it_was_or_to_the_newest_state(ui: Ui, run: Living) -> None:
    path = f"/runs/{run.run.id}/stream"
    stream = ui.stream(path, "")
    messages = stream.messages()
    first, message = next(messages)
    assert "data" in message, "a whole page, for one that has nothing"
    second, message = next(messages)
    stream.close()
    again = ui.stream(path, first)
    cursor, same = next(again.messages())
    assert (cursor, same) == (second, message)
    again.close()


def test_one_that_never_reads_holds_up_nobody_and_gets_the_newest_state(whole: Run, tmp_path: Path) -> None:
    socket = str(tmp_path / "ui" / "socket")  # whose buffers are small
    with living(whole, tmp_path / "runs") as made, serving(tmp_path, "--socket", socket) as ui:
        path = f"/runs/{made.run.id}/stream"
        stuck, other = ui.stream(path), ui.stream(path)
        messages = other.messages()
        next(messages)
        name = made.directory / "logs" / "node-000.log"
        line = f"2026-11-25T08:00:00.000Z stdout {'x' * 400} of a flood\n"
        name.write_text(line)
        until, sent = time.monotonic() + PATIENCE_S, 0
        while sent < 6 << 20:  # more than all buffers on the way, and what is kept for readers
            assert time.monotonic() < until
            with name.open("a") as log:
                log.write(line * 500)
            _, message = next(messages)
            sent += len(str(message))
        whole_pages = 0
        for _, message in stuck.messages():  # were it sent all, it would wait for a second whole page in vain
            whole_pages += "data" in message
            if whole_pages == 2:
                break
        stuck.close()
        other.close()
        pid = ui.process.pid
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        assert peak is not None
        assert int(peak[1]) < 300_000


def test_further_streams_of_a_browser_end_at_once_and_come_again(ui: Ui, run: Living) -> None:
    """A browser has six connections to a server: with seven pages open one of them would wait for ever."""
    path = f"/runs/{run.run.id}/stream"
    streams = [ui.stream(path) for _ in range(10)]
    ended = streams[-1].answer.read().decode()
    assert ended.startswith("retry: 100\n")
    assert ended.count("data: ") >= 1
    for stream in streams:
        stream.close()
    until = time.monotonic() + PATIENCE_S
    while True:  # the server hears of it a moment later
        stream = ui.stream(path)
        lasts = stream.answer.readline() == b"retry: 2000\n"
        stream.close()
        if lasts:
            break
        assert time.monotonic() < until


@pytest.mark.parametrize(("by", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_it_ends_in_order_with_pages_open(whole: Run, tmp_path: Path, by: signal.Signals, code: int) -> None:
    with living(whole, tmp_path / "runs") as made, serving(tmp_path) as ui:
        stream = ui.stream(f"/runs/{made.run.id}/stream")
        next(stream.messages())
        began = time.monotonic()
        assert ui.end(by) == (code, "")
        assert time.monotonic() - began < PATIENCE_S
        stream.close()


def test_a_unix_socket_is_for_its_user_alone(whole: Run, tmp_path: Path) -> None:
    path = tmp_path / "private" / "socket"
    with living(whole, tmp_path / "runs") as made, serving(tmp_path, "--socket", str(path)) as ui:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert ui.said["socket"] == str(path)
        assert ui.ask("/", cookie=False, host="localhost").status == 403
        assert made.run.id in ui.ask("/", host="localhost:8080").text
        assert ui.ask("/", host="evil.example").status == 403
        assert ui.end() == (0, "")
        assert not path.exists()


def test_a_socket_that_a_killed_server_left_is_taken(whole: Run, tmp_path: Path) -> None:
    path = tmp_path / "private" / "socket"
    with serving(tmp_path, "--socket", str(path)) as ui:
        ui.process.kill()
        ui.process.wait()
        assert path.exists()
    with serving(tmp_path, "--socket", str(path)) as ui:
        assert ui.ask("/", host="localhost").status == 200
