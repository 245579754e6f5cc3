"""A headless Chromium, driven through pipes by its own protocol: no package and no port is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_S = 120.0
LOOK_S = 0.02  # between looks at what is waited for: the page needs the processor itself

# Chromium closes its connections whenever an interface of the computer comes or goes, as those of containers and of the
# lab's hosts do. A page's stream is opened again by the page; what a page loads has to be loaded again.
NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"
BETWEEN = (  # what its protocol says of a page that is being left
    "Cannot find default execution context",
    "Execution context was destroyed",
    "Inspected target navigated or closed",
)


class Chromium:
    """One page. ``complaints``: what the console showed, and exceptions; ``requests``: the URLs that were asked for.

    Of `NETWORK_CHANGED` there are no complaints: `show` loads the page again.
    """

    def __init__(self, profile: Path) -> None:
        assert BROWSER is not None
        ours, theirs = os.pipe(), os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--disable-background-networking"]

        placed = f'exec "$0" "$@" 3<&{ours[0]} 4>&{theirs[1]}'  # Chromium reads orders from 3, and answers to 4
        self._process = subprocess.Popen(
            ["bash", "-c", placed, BROWSER, *flags, "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(ours[0], theirs[1]),
            start_new_session=True,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._orders, self._answers = ours[1], theirs[0]
        self._rest, self._number, self._session, self._changed = b"", 0, "", False
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self._page()
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def _page(self) -> str:
        """Return its id. It may be there a moment after the browser answers."""
        until = time.monotonic() + PATIENCE_S
        while True:
            targets = self._ask("Target.getTargets")["targetInfos"]
            if pages := [each["targetId"] for each in targets if each["type"] == "page"]:
                return str(pages[0])
            assert time.monotonic() < until, "Chromium opens no page"
            time.sleep(LOOK_S)

    def close(self) -> None:
        os.close(self._orders)
        os.close(self._answers)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def show(self, page: Path | str, *, width: int = 1280, dark: bool = False) -> None:
        """Open a file or a URL, and wait until it is loaded."""
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])
        url, self._changed = page.as_uri() if isinstance(page, Path) else page, True
        while self._changed:
            self._changed = False
            self.complaints.clear()
            self.requests.clear()
            failure = self._ask("Page.navigate", url=url).get("errorText")
            self.wait("document.readyState === 'complete' && location.protocol !== 'about:'")
            self._changed |= failure == NETWORK_CHANGED

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, of which a promise is waited for."""
        said = self._ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    def wait(self, expression: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not self._holds(expression):
            assert time.monotonic() < until, f"never: {expression}"
            time.sleep(LOOK_S)

    def _holds(self, expression: str) -> Any:
        """Between two pages, as while one leads to another, there is nothing that could answer."""
        try:
            return self.evaluate(expression)
        except AssertionError as error:
            if any(each in str(error) for each in BETWEEN):
                return False
            raise

    def screenshot(self, path: Path, *, of: str = "") -> None:
        """Write what is to be seen as a PNG file; or one element of the page, all of it, and larger."""
        clip: dict[str, Any] = {}
        if of:
            box = "(({x, y, width, height}) => ({x, y, width, height}))"
            place = self.evaluate(f"{box}(document.querySelector({of!r}).getBoundingClientRect())")
            clip = {"clip": {**place, "scale": 1.5}}
        said = self._ask("Page.captureScreenshot", captureBeyondViewport=True, **clip)
        path.write_bytes(base64.b64decode(said["data"]))

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        order: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._orders, json.dumps(order).encode() + b"\0")
        while True:
            said = self._next()
            if said.get("id") == self._number:
                assert "error" not in said, f"{method}: {said['error']}"
                return said["result"]
            self._heard(said.get("method", ""), said.get("params", {}))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._answers], [], [], PATIENCE_S)[0], "Chromium does not answer"
            chunk = os.read(self._answers, 1 << 16)
            assert chunk, "Chromium has ended"
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)

    def _heard(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Log.entryAdded" if NETWORK_CHANGED in params["entry"]["text"]:
                self._changed = True
            case "Log.entryAdded":
                self.complaints.append(params["entry"]["text"])
            case "Runtime.consoleAPICalled":
                self.complaints.append(str(params["args"]))
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
