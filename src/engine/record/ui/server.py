"""The web server of `outrider ui`: its sockets, its start and end, the addresses of its pages, and the check whether a
request has access. It needs the extra `ui`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import secrets
import signal
import socket
import stat
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from ....providers.shared.paths import make_private
from ....providers.shared.sockets import listening, short_name
from ...api.checks import refuse
from ..report.contents import read_contents
from ..report.page import parts_of
from ..runs.names import name_in
from ..runs.reader import Run, at_present, run_of
from .access import METRICS, Access, AccessRequest, Verdict
from .documents import is_there, links_of, media_type, plain_document, run_document
from .pages import LOOK_S, RunPage, RunsPage
from .watching import EventStream, Watch, Watches

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


HOST = "127.0.0.1"
SEND_BYTES = 256 * 1024  # size of the socket's send buffer, which fills if a browser does not read
NICE = 5  # lowers the priority of the server, so that tasks of a local pool come first
END_S = 2  # at the server's end: seconds for which it waits for open requests

Announce = Callable[[str, str], object]


def serve(sock: socket.socket, folder: Path, acts: Mapping[str, Act], announce: Announce, metrics: str = "") -> int:
    """Serve the pages until SIGINT, SIGTERM or SIGHUP. Return the number of that signal.

    Args:
        sock: The listening socket.
        folder: The folder with the records of runs.
        acts: Name of a button -> its action.
        announce: Called when the server is ready, with its address and with an address that works only once.
        metrics: A token that allows only the metrics; "": there is none.
    """
    with contextlib.suppress(OSError):
        os.nice(NICE)
    return anyio.run(_serve, sock, folder, acts, announce, metrics)


async def _serve(sock: socket.socket, folder: Path, acts: Mapping[str, Act], announce: Announce, metrics: str) -> int:
    port = sock.getsockname()[1] if sock.family == socket.AF_INET else None
    token, once, access = opened(port, metrics)
    place = f"http://{HOST if port is not None else 'localhost'}{f':{port}' if port else ''}/?token="
    ended: list[signal.Signals] = []
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async with anyio.create_task_group() as tasks:
            pages = Pages(folder, acts, tasks)
            config = uvicorn.Config(
                pages.app(access),
                lifespan="off",
                log_config=None,
                access_log=False,
                ws="none",
                http="h11",
                loop="asyncio",
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=END_S,
            )
            server = uvicorn.Server(config)
            setattr(server, "capture_signals", contextlib.nullcontext)  # noqa: B010  this function handles signals itself, above
            tasks.start_soon(_end, signals, ended, pages, server)
            announce(place + token, place + once)
            await server.serve(sockets=[sock])
            tasks.cancel_scope.cancel()
    return int(ended[0]) if ended else 0


async def _end(
    signals: AsyncIterator[signal.Signals], ended: list[signal.Signals], pages: Pages, server: uvicorn.Server
) -> None:
    async for each in signals:
        ended.append(each)
        pages.close()
        server.should_exit = True


def loopback_socket(port: int) -> socket.socket:
    """Return a socket that listens on 127.0.0.1. ``port``: 0 means any free port.

    Raises:
        SpecError: The port is in use, or this user may not use it.
    """
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        sock.bind((HOST, port))
        sock.listen(128)
    except OSError as error:
        sock.close()
        why = "another program has it" if error.errno == errno.EADDRINUSE else error.strerror
        refuse(f"--port {port} of {HOST} cannot be used: {why}. Without --port one is taken that is free.")
    return sock


def private_socket(path: Path) -> socket.socket:
    """Return a unix socket that listens at ``path``, in a folder that only this user may enter.

    Create the folder if needed.

    Raises:
        SpecError: Other users may enter the folder, or ``path`` already exists.
    """
    path = path.absolute()
    try:
        make_private(path.parent)
        mode = stat.S_IMODE(path.parent.stat().st_mode)
        if mode & 0o077:
            refuse(f"--socket {path}: others may enter its folder (mode {mode:o}): `chmod 700 {path.parent}`.")
        if _is_left(path):
            path.unlink()
        return listening(path)
    except OSError as error:
        why = "something is there already" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        refuse(f"--socket {path} cannot be used: {why}.")


def _is_left(path: Path) -> bool:
    """Return whether ``path`` is the socket of a server that was killed: no process listens on it."""
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as sock, short_name(path) as name:
        try:
            sock.connect(name)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
