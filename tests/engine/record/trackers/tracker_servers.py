"""Servers on 127.0.0.1: one that behaves as MLflow's REST API does, as far as it is used, and a webhook receiver."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

NAME = re.compile(r"[\w\-. :/]+")


class Answer(Exception):
    def __init__(self, code: int, message: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.headers = code, message, headers or {}


class Served:
    """What a server has got. ``fails``: called with each request, may raise `Answer`."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.fails: Callable[[str, str], None] = lambda method, path: None
        self.address = ""
        self.lock = threading.Lock()

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Any:
        with self.lock:
            self.requests.append((method, path, headers, body))
            self.fails(method, path)
            return self.take(method, path, headers, body)

    def take(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Any:
        return {}


class FakeMLflow(Served):
    """``metrics``: by run, the rows of (name, timestamp, step, value), of which none is there twice."""

    def __init__(self, artifact_root: str = "mlflow-artifacts:") -> None:
        super().__init__()
        self.root = artifact_root
        self.experiments: dict[str, str] = {"Default": "0"}
        self.runs: dict[str, dict[str, Any]] = {}
        self.metrics: dict[str, dict[tuple[str, int, int, str], int]] = {}
        self.params: dict[str, dict[str, str]] = {}
        self.tags: dict[str, dict[str, str]] = {}
        self.artifacts: dict[str, bytes] = {}
        self.param_chars = 6000

    def rows(self, run: str | None = None) -> list[tuple[str, int, int, float]]:
        """Return each point once, by name, step and time."""
        found = self.metrics[run or self.only()]
        return sorted((name, step, at, float(value)) for name, at, step, value in found)

    def only(self) -> str:
        (run,) = self.runs
        return run

    def take(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Any:  # noqa: PLR0911  a table
        parts = urlsplit(path)
        if parts.path.startswith("/api/2.0/mlflow-artifacts/artifacts/"):
            assert int(headers["content-length"]) == len(body)
            self.artifacts[unquote(parts.path.removeprefix("/api/2.0/mlflow-artifacts/artifacts/"))] = body
            return {}
        said = json.loads(body or b"{}")
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        match (method, parts.path.removeprefix("/api/2.0/mlflow/")):
            case "GET", "experiments/get-by-name":
                name = asked["experiment_name"]
                if name not in self.experiments:
                    raise Answer(404, f"Could not find experiment with name '{name}'")
                return {"experiment": {"experiment_id": self.experiments[name], "lifecycle_stage": "active"}}
            case "POST", "experiments/create":
                self.experiments[said["name"]] = str(len(self.experiments))
                return {"experiment_id": self.experiments[said["name"]]}
            case "POST", "runs/search":
                wanted = re.fullmatch(r"tags\.`(.+)` = '(.+)'", said["filter"])
                assert wanted is not None
                found = [
                    {"info": run}
                    for key, run in self.runs.items()
                    if self.tags[key].get(wanted[1]) == wanted[2] and run["experiment_id"] in said["experiment_ids"]
                ]
                return {"runs": found} if found else {}
            case "POST", "runs/create":
                run = f"r{len(self.runs)}"
                where = f"{self.root}/{said['experiment_id']}/{run}/artifacts"
                kept = {"run_id": run, "status": "RUNNING", "artifact_uri": where}
                self.runs[run] = {**kept, **{key: said[key] for key in ("experiment_id", "run_name", "start_time")}}
                self.metrics[run], self.params[run] = {}, {}
                self.tags[run] = {each["key"]: each["value"] for each in said["tags"]}
                return {"run": {"info": self.runs[run]}}
            case "GET", "runs/get":
                return {"run": {"info": self._run(asked["run_id"])}}
            case "POST", "runs/update":
                self._run(said["run_id"]).update(status=said["status"], end_time=said["end_time"])
                return {"run_info": self.runs[said["run_id"]]}
            case "POST", "runs/log-batch":
                self._batch(self._run(said["run_id"])["run_id"], said)
                return {}
        raise Answer(404, "no such address")

    def _run(self, run: str) -> dict[str, Any]:
        if run not in self.runs:
            raise Answer(404, f"Run with id={run} not found")
        return self.runs[run]

    def _batch(self, run: str, said: dict[str, Any]) -> None:
        metrics, params, tags = (said.get(each, []) for each in ("metrics", "params", "tags"))
        if len(metrics) > 1000 or len(params) > 100 or len(tags) > 100:
            raise Answer(400, "A batch logging request can contain at most 1000 metrics")
        for each in (*metrics, *params, *tags):
            if not NAME.fullmatch(each["key"]) or len(each["key"]) > 250:
                raise Answer(400, f"Invalid name: {each['key']!r}")
        for each in metrics:
            float(each["value"])
            assert {type(each["step"]), type(each["timestamp"])} == {int}
        for each in params:
            if len(each["value"]) > self.param_chars:
                raise Answer(400, f"Param value of {each['key']!r} exceeds the limit of {self.param_chars} characters")
            if self.params[run].get(each["key"], each["value"]) != each["value"]:
                raise Answer(400, f"Changing param values is not allowed. Param with key='{each['key']}' was logged")
        for each in metrics:
            row = each["key"], each["timestamp"], each["step"], str(float(each["value"]))
            self.metrics[run][row] = self.metrics[run].get(row, 0) + 1
        self.params[run] |= {each["key"]: each["value"] for each in params}
        self.tags[run] |= {each["key"]: each["value"] for each in tags}


@contextmanager
def serving(served: Served, port: int = 0) -> Iterator[None]:
    """Serve until the block ends. Connections are closed with it."""

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                code, said, more = 200, served.answer(self.command, self.path, headers, body), {}
            except Answer as answer:
                code, said, more = answer.code, {"message": answer.message}, answer.headers
            text = json.dumps(said).encode()
            self.send_response(code)
            for name, value in {"Content-Length": str(len(text)), **more}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = _any  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # its client was killed

    server = Server(("127.0.0.1", port), Handler)
    served.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Hook(Served):
    """A receiver of webhooks that takes each key once. ``times``: how often each key came."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: dict[str, dict[str, Any]] = {}
        self.times: dict[str, int] = {}

    def take(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Any:
        key = headers["idempotency-key"]
        self.times[key] = self.times.get(key, 0) + 1
        self.taken.setdefault(key, json.loads(body))
        return {}

    def kinds(self) -> list[str]:
        return [said["kind"] for said in self.taken.values()]


def wait_until(true: Callable[[], object], within_s: float = 100.0) -> None:
    until = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < until, "it did not become true"
        time.sleep(0.02)
