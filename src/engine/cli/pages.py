"""The verbs that show runs as HTML: `outrider report` writes a file, `outrider ui` shows live pages in a browser."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..api.checks import refuse
from ..record.report.page import is_no_file_of_its_own, write_report
from ..record.runs.names import runs_folder
from ..record.runs.reader import Run
from .common import DONE, AsJson, refused
from .run_choice import RunWord, chosen_run

FAILED = 1  # exit code: the file cannot be written


def report(
    run: RunWord,
    /,
    *,
    open_: Annotated[bool, Parameter(name="--open", negative="")] = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    as_json: AsJson = False,
) -> int:
    """Write a run's events, curves, nodes and logs into one HTML file.

    The file is `report.html` in the run's record, and its path is printed. It needs no network and no server, so you
    can copy and send it. If the run goes on, the file shows its present state. Exits with 1 if the file cannot be
    written, and with 2 if there is no such run.

    Example: `outrider report train --open`

    Parameters
    ----------
    open_:
        Open the file in the browser.
    output:
        Write to this file instead of the record.
    as_json:
        Print the run's id, and the file's path and size, as JSON, for programs.
    """
    if as_json and output is not None and is_no_file_of_its_own(output):
        refuse(f"--json tells a file's path and size, and {output} is no file of its own: give it another one.")
    chosen = chosen_run(run)
    # a report may keep a hundred thousand points in memory: garbage collection would search them all, take a third of
    # the time, and find no garbage
    gc.disable()
    try:
        path = write_report(chosen, output)
    except OSError as error:
        where = f"{output}" if output is not None else "the record"
        advice = "" if output is not None else ": --output FILE writes it elsewhere"
        print(f"outrider: the report cannot be written to {where} ({error.strerror or error}){advice}", file=sys.stderr)
        return FAILED
    finally:
        gc.enable()
    if as_json:
        facts = {"id": chosen.id, "path": str(path.absolute()), "size_bytes": path.stat().st_size}
        print(json.dumps(facts, indent=2))
    else:
        print(path)
    if open_ and not opened(path.absolute().as_uri()):
        print("outrider: there is no browser here: open the file in one", file=sys.stderr)
    return DONE


def opened(url: str) -> bool:
    """Open a URL in a browser. Return whether a browser was found. The browser's output goes to stderr."""
    sys.stdout.flush()
    stdout = os.dup(1)
    try:
        os.dup2(2, 1)
        return webbrowser.open(url)
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


LEAST_TOKEN, MOST_TOKEN = 16, 1024  # shortest and longest token for metrics, in characters
STOP_S = 600.0  # seconds to wait for the end of all machines when the user stops a run on a page


def ui(
    *,
    port: int = 0,
    socket: Path | None = None,
    metrics_token: Path | None = None,
    open_: Annotated[bool, Parameter(name="--open", negative="")] = False,
    as_json: AsJson = False,
) -> int:
    """Show all runs of this computer in a browser, on pages that update while the runs go on.

    Example: `outrider ui --open`

    Prints the address of the pages, which works only on this computer. The address has a token: without the token, the
    server shows nothing. On the page of a running run, you can stop the run, and take its stacks and profiles. The
    server only reads the runs' records, so it does not slow down pools. It runs until Ctrl-C. Exits with 2 if the port
    or the socket cannot be used. Needs the extra `ui`: pip install 'outrider[ui]'.

    Parameters
    ----------
    port:
        The port of 127.0.0.1 to listen on. 0: any free port.
    socket:
        Listen on this unix socket instead of a port. Its folder must be open only to you, and is created if it is
        missing.
    metrics_token:
        A file with a token that gives access to `/metrics` (for Prometheus) and to nothing else. It is created, with a
        new token, if it is missing.
    open_:
        Open the list of runs in the browser.
    as_json:
        Print the address and the socket's path as JSON, for programs.
    """
    try:
        from ..record.ui.server import loopback_socket, private_socket, serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise refused("ui needs a part that is not installed: pip install 'outrider[ui]'") from error
    if not 0 <= port <= 65535:
        refuse(f"--port takes a number from 0 to 65535, not {port}.")
    if socket is not None and (port or open_):
        refuse("--socket goes with neither --port nor --open: browsers open no unix sockets.")
    metrics = "" if metrics_token is None else _token_in(metrics_token)
    listener = loopback_socket(port) if socket is None else private_socket(socket)

    def announce(url: str, once: str) -> None:
        if as_json:
            print(json.dumps({"url": url, "socket": str(socket.absolute()) if socket else None}, indent=2), flush=True)
        else:
            print(url if socket is None else f"{url} on {socket.absolute()}", flush=True)
        if open_ and not opened(once):
            print("outrider: there is no browser here: open the address in one", file=sys.stderr)

    try:
        ended = serve(
            listener, runs_folder(), {"stop": _stop, "stacks": _stacks, "profile": _profile}, announce, metrics
        )
    finally:
        listener.close()
        if socket is not None:
            with suppress(OSError):
                socket.unlink()
    return DONE if ended == signal.SIGINT else 128 + ended


def _token_in(path: Path) -> str:
    """Return the token in a file. The file is created if it is missing.

    Raises:
        SpecError: the file cannot be read or created, or has no token.
    """
    from secrets import token_urlsafe

    try:
        with suppress(FileExistsError):
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(token_urlsafe(32) + "\n")
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        refuse(f"--metrics-token {path} cannot be used: {getattr(error, 'strerror', None) or 'it is no text'}.")
    if not LEAST_TOKEN <= len(token) <= MOST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        need = f"one line of {LEAST_TOKEN} to {MOST_TOKEN} letters, digits and signs, and no blanks"
        refuse(f"--metrics-token {path} has no token: it takes {need}. Remove the file, and a new one is made.")
    return token


def _stop(run: Run) -> str:
    from .control import stopped

    _, message, _ = stopped(run, run.id, STOP_S)
    return message


def _stacks(run: Run) -> str:
    from ..api.sink import Refused
    from ..record.runs.control import NoAnswer
    from .control import take_stacks

    try:
        taken = take_stacks(run)
    except (NoAnswer, Refused) as error:
        return str(error)
    return f"{len(taken)} stacks are in the record" if taken else "nothing runs"


def _profile(run: Run) -> str:
    from ..api.sink import Refused
    from ..record.profiles import verdict
    from ..record.runs.control import NoAnswer
    from .control import STEPS, STEPS_WITHIN_S, take_profile

    try:
        taken = take_profile(run, steps=STEPS, seconds=STEPS_WITHIN_S)
    except (NoAnswer, Refused) as error:
        return str(error)
    return verdict(taken) if taken.trace is not None else "no task has a trace: the page's section of profiles says why"
