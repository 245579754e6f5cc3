"""A package index on the controller's address, for hosts that have no way out: it serves, hangs or lacks everything."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import threading
import zipfile
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

Mood = Literal["serves", "hangs", "lacks"]
SIMPLE = "/simple/"
FILES = "/files/"


class PackageIndex:
    """The simple API over a folder of wheels; PEP 503 says how projects are listed.

    ``hangs``: it takes requests and never answers. ``lacks``: it answers 404 to all of them.
    """

    def __init__(self, address: str, folder: Path, *, mood: Mood = "serves") -> None:
        self.mood = mood
        self.requests: list[str] = []  # the paths that were asked for, in order
        self._folder = folder
        self._released = threading.Event()
        index = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                index._answer(self)

            do_HEAD = do_GET  # noqa: N815 - the name is the protocol's

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                pass

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}{SIMPLE}"

    def __enter__(self) -> PackageIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        self.requests.append(request.path)
        if self.mood == "hangs":
            self._released.wait()
            request.close_connection = True
            return
        body = None if self.mood == "lacks" else self._page(request.path)
        request.send_response(200 if body is not None else 404)
        kind = "text/html" if request.path.startswith(SIMPLE) else "application/octet-stream"
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body or b"")))
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body or b"")

    def _page(self, path: str) -> bytes | None:
        wheels = sorted(self._folder.glob("*.whl"))
        if path.startswith(FILES):
            return next((wheel.read_bytes() for wheel in wheels if wheel.name == path.removeprefix(FILES)), None)
        if not path.startswith(SIMPLE):
            return None
        asked = path.removeprefix(SIMPLE).strip("/")
        if not asked:
            return _links({name: f"{SIMPLE}{name}/" for name in sorted({_project(wheel) for wheel in wheels})})
        found = [wheel for wheel in wheels if _project(wheel) == asked]
        if not found:
            return None
        return _links({wheel.name: f"{FILES}{wheel.name}#sha256={_digest(wheel.read_bytes())}" for wheel in found})


def write_wheel(folder: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """A pure-Python wheel of these files (path in it: text), as small as the format allows."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    contents = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_recorded(text)},{len(text.encode())}\n" for path, text in contents.items())
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for each, text in contents.items():
            wheel.writestr(each, text)
    return path


def _project(wheel: Path) -> str:
    return re.sub(r"[-_.]+", "-", wheel.name.partition("-")[0]).lower()


def _links(pages: Mapping[str, str]) -> bytes:
    rows = "".join(f'<a href="{html.escape(url)}">{html.escape(name)}</a><br>\n' for name, url in pages.items())
    return f"<!DOCTYPE html><html><body>\n{rows}</body></html>".encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _recorded(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
