"""The web pages: their addresses, and the check whether a request has access."""

from __future__ import annotations

import asyncio
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from ..report.contents import read_contents
from ..report.page import parts_of
from ..runs.names import name_in
from ..runs.reader import Run, at_present, run_of
from .access import METRICS, Access, AccessRequest, Verdict
from .documents import plain_document, run_document
from .downloads import is_there, links_of, media_type
from .run_page import RunPage
from .runs_page import LOOK_S, RunsPage
from .streams import EventStream
from .watching import Watch, Watches

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from .prometheus import Exporter, Text

LASTING = 4  # most streams of updates that stay open: a browser has six connections, and needs some for other requests
ANSWER_S = 5.0  # after this many seconds, the reply to a button says that its action is still running
HEADERS = {  # headers of every reply; each page also contains its own policy for scripts and requests
    "cache-control": "no-store",
    "content-security-policy": "frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
REFUSED: Mapping[Verdict, str] = {
    "no token": "The address that `outrider ui` has printed has the token without which nothing is shown. Open that.",
    "other host": "These pages are at 127.0.0.1 and localhost, with the port that `outrider ui` has printed.",
    "other site": "A page of another site has asked for this. Open the address yourself.",
}

_OWN_PATH = re.compile(r"/(runs/[A-Za-z0-9._-]+)?")
Act = Callable[[Run], str]  # the action of a button: returns a message for the user, and may take long


class Pages:
    """The web pages of the runs whose records are in ``folder``. ``acts``: name of a button -> its action."""

    def __init__(self, folder: Path, acts: Mapping[str, Act], tasks: TaskGroup) -> None:
        self._folder, self._acts = folder, acts
        self._watches = Watches(tasks)
        self._lasting = 0
        self._exporter: Exporter | None = None
        self._exporting = threading.Lock()
        self._doing: set[Done] = set()

    def close(self) -> None:
        """End all streams of updates, and stop waiting for actions."""
        self._watches.close()
        for each in self._doing:
            each.event.set()

    def app(self, access: Access) -> ASGIApp:
        routes = [
            Route("/", self._runs),
            Route("/stream", self._runs_stream),
            Route(METRICS, self._metrics),
            Route("/runs/{run}", self._run),
            Route("/runs/{run}/stream", self._run_stream),
            Route("/runs/{run}/{folder}/{name}", self._file),
            Route("/runs/{run}/{act}", self._act, methods=["POST"]),
        ]
        return Guard(Starlette(routes=routes), access)

    async def _runs(self, request: Request) -> Response:  # noqa: ARG002  the signature of all handlers
        return HTMLResponse(await (await self._runs_watch()).html())

    async def _runs_stream(self, request: Request) -> ASGIApp:
        return self._stream(request, await self._runs_watch())

    async def _runs_watch(self) -> Watch:
        return await self._watches.of("", lambda: RunsPage(self._folder, _name()), LOOK_S)

    async def _metrics(self, request: Request) -> Response:
        try:
            exported = await anyio.to_thread.run_sync(self._metrics_text, request.headers.get("accept", ""))
        # prometheus_client is missing: the extra `ui` was installed for an older version that did not need it
        except ModuleNotFoundError as error:
            if error.name != "prometheus_client":
                raise
            lacks = "This needs a part that is not installed: pip install 'outrider[ui]'"
            return HTMLResponse(plain_document("Not installed", lacks), status_code=501)
        return Response(exported.content, media_type=exported.kind)

    def _metrics_text(self, accept: str) -> Text:
        with self._exporting:
            if self._exporter is None:
                from .prometheus import Exporter  # imported here, as the import is slow and rarely needed

                self._exporter = Exporter(self._folder)
        return self._exporter.text(accept)

    async def _run(self, request: Request) -> Response:
        run = await anyio.to_thread.run_sync(self._run_named, request.path_params["run"])
        if run is None:
            return _none(request)
        living = await anyio.to_thread.run_sync(_lives, run)
        if living:
            return HTMLResponse(await (await self._run_watch(run)).html())
        return HTMLResponse(await anyio.to_thread.run_sync(_ended_page, run))

    async def _run_stream(self, request: Request) -> ASGIApp:
        run = await anyio.to_thread.run_sync(self._run_named, request.path_params["run"])
        return _none(request) if run is None else self._stream(request, await self._run_watch(run))

    async def _file(self, request: Request) -> Response:
        run = await anyio.to_thread.run_sync(self._run_named, request.path_params["run"])
        name = request.path_params["name"]
        path = f"{request.path_params['folder']}/{name}"
        kind = media_type(path)
        if run is None or kind is None or not await anyio.to_thread.run_sync(is_there, run, path):
            return _none(request)
        return FileResponse(run.directory / path, media_type=kind, filename=f"{run.id}-{name}")

    async def _run_watch(self, run: Run) -> Watch:
        return await self._watches.of(run.id, lambda: RunPage(run, _name()))

    def _stream(self, request: Request, watch: Watch) -> ASGIApp:
        cursor = request.headers.get("last-event-id") or request.query_params.get("from", "")
        lasting = self._lasting < LASTING
        self._lasting += lasting

        def left() -> None:
            self._lasting -= lasting

        return EventStream(watch, cursor, lasting=lasting, left=left)

    async def _act(self, request: Request) -> Response:
        run = await anyio.to_thread.run_sync(self._run_named, request.path_params["run"])
        act = self._acts.get(request.path_params["act"])
        if run is None or act is None:
            return _none(request)
        done = Done()
        done.begin(act, run)
        self._doing.add(done)
        with anyio.move_on_after(ANSWER_S):
            await done.event.wait()
        self._doing.discard(done)
        return JSONResponse({"said": done.message or f"run {run.id} is asked, and has not answered yet"})

    def _run_named(self, name: str) -> Run | None:
        directory = self._folder / name
        return run_of(directory) if name_in(name) and directory.is_dir() else None


class Done:
    """The progress of a button's action. ``message``: the action's result; "" while the action runs."""

    def __init__(self) -> None:
        self.event, self.message = anyio.Event(), ""

    def begin(self, act: Act, run: Run) -> None:
        """Run the action in a daemon thread: a stop of a run may take minutes, and the server's end must not wait
        for it.
        """
        loop = asyncio.get_running_loop()

        def work() -> None:
            try:
                message = act(run)
            except Exception as error:  # noqa: BLE001  shown to the user who pressed the button
                message = f"{type(error).__name__}: {error}"
            with suppress(RuntimeError):  # the server has already ended
                loop.call_soon_threadsafe(self._over, message)

        threading.Thread(target=work, name="outrider-ui-act", daemon=True).start()

    def _over(self, message: str) -> None:
        self.message = message
        self.event.set()


class Guard:
    """The filter in front of the web application ``app``.

    It passes only the requests that `Access` allows, and adds `HEADERS` to every reply.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        headers = {name.lower(): value for name, value in request.headers.items()}
        token = request.query_params.get("token", "")
        access_request = AccessRequest(request.method, headers, request.cookies, token, request.url.path)
        verdict = self._access.verdict(access_request)

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *more]
            await send(message)

        answer = self._app if verdict == "allowed" else self._answer(verdict, request)
        await answer(scope, receive, sent)

    def _answer(self, verdict: Verdict, request: Request) -> Response:
        if verdict != "enter":
            return HTMLResponse(plain_document("Not shown", REFUSED[verdict]), status_code=403)
        path = request.url.path if _OWN_PATH.fullmatch(request.url.path) else "/"
        answer = HTMLResponse(plain_document("Outrider", "The page follows.", to=path))
        answer.set_cookie(self._access.cookie, self._access.token, path="/", httponly=True, samesite="strict")
        return answer


class Opened(NamedTuple):
    """The access to a new server: a token for any number of uses, a token for a single use, and the rules."""

    token: str
    once: str
    access: Access


def opened(port: int | None, metrics: str = "") -> Opened:
    """Create the tokens and access rules for a server.

    ``port``: its port on 127.0.0.1; None: it listens on a unix socket. ``metrics``: see `Access`.
    """
    token, once = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    return Opened(token, once, Access(token, port, once, metrics))


def _name() -> str:
    """Return a unique name for a stream of updates."""
    return secrets.token_hex(6)


def _lives(run: Run) -> bool:
    owner, now = at_present(run)
    return not now.ended and owner != "dead"


def _ended_page(run: Run) -> str:
    contents = read_contents(run)
    return run_document(contents, parts_of(contents, links_of(run)), "")


def _none(request: Request) -> Response:
    message = f"There is no {request.url.path} here: its record may have been removed."
    return HTMLResponse(plain_document("Not found", message), status_code=404)
