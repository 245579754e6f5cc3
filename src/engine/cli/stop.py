"""`outrider stop`: ends a run, with its tasks and its nodes."""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

from ..api.language import worded
from ..api.printable import plain
from ..api.sink import Refused
from ..runs.control import NoAnswer, ask
from ..runs.names import runs_folder
from ..runs.reader import Run, read_json, run_of, runs_in
from .exit_codes import NOTHING, SOMETHING, UNKNOWN
from .flags import AsJson
from .run_choice import RunWord, checked_timeout, chosen_run

PROGRAM_S = 5.0  # seconds to wait for the program's end after its pool has ended; `outrider run` ends by itself then
POLL_S = 0.02
LEAST_S = 0.01  # shortest wait for a reply, in seconds
SOON_S = 5.0  # seconds until a message says that the command is still waiting
STATUS_S = 60.0  # a living owner updates its record at least once in so many seconds


def stop(run: RunWord, /, *, timeout: float = 600.0, as_json: AsJson = False) -> int:
    """End a run: its tasks and its nodes. Its program gets the error RunStopped.

    Example: `outrider stop train`

    Exits with 0 if nothing of the run is left, or the run had already ended; with 1 if machines may be left; and with 2
    if the result is unknown: there is no such run, it belongs to another computer, its program does not answer, or its
    program died and left tasks on your own hosts.

    If RUN is a name whose newest run has ended while an older run goes on, nothing is ended (exit code 2): write the id
    of the older run.

    Parameters
    ----------
    timeout:
        Seconds to wait until all machines have ended. On this computer, less than one is needed.
    as_json:
        Print JSON, for programs.
    """
    timeout = max(checked_timeout(timeout), LEAST_S)
    began, chosen = time.monotonic(), chosen_run(run)
    code, message, facts = stopped(chosen, run, timeout)
    if as_json:
        facts = {"id": chosen.id, "exit_code": code, "said": message, **facts, "took_s": time.monotonic() - began}
        print(json.dumps(facts, indent=2))
    else:
        print(f"outrider: {worded(plain(message))}", file=sys.stderr)
    return code


def stopped(run: Run, wanted: str, timeout: float) -> tuple[int, str, dict[str, object]]:
    """End a run.

    Return the exit code, the message, and further fields for JSON. ``wanted``: the name or id that the user wrote.
    """
    owner = run.owner
    if owner == "dead" and (namesakes := _living_namesakes(run, wanted)):
        how = "has ended" if run.ended else "has lost its owner, which died"
        message = f"run {run.id} {how}, and of the same name there is {', '.join(namesakes)}: write its id"
        return UNKNOWN, message, {"stopped": False}
    if owner == "dead":
        code, message = _without_owner(run_of(run.directory), time.time())
        return code, message, {"stopped": False}
    try:
        answer = _request_stop(run, timeout)
    except (NoAnswer, Refused) as error:
        if run_of(run.directory).ended:  # the run has ended by itself in the meantime
            return NOTHING, f"run {run.id} has ended", {"stopped": False}
        pid = _pid(run)
        advice = f"; `kill {pid}` ends it as well" if owner == "alive" and pid else ""
        return UNKNOWN, f"{error}{advice}", {"stopped": False}
    if answer["left"]:
        return SOMETHING, f"run {run.id} has ended, and {answer['left']}", {"stopped": True}
    program = "" if _program_ended(run) else f"; its program, process {_pid(run)}, goes on"
    return NOTHING, f"run {run.id} has ended{program}", {"stopped": True, "program_ended": not program}


def _request_stop(run: Run, timeout: float) -> dict[str, Any]:
    """Request the end of the run from its owner (its program), and print a message if that takes long.

    The request may be sent twice: the second one gets the reply to the first.
    """
    soon = min(timeout, SOON_S)
    try:
        return ask(run, "stop", within_s=soon)
    except NoAnswer as error:
        if not error.busy or timeout <= soon:
            raise
    print(f"outrider: waiting for the end of {run.id}", file=sys.stderr)
    return ask(run, "stop", within_s=timeout - soon)


def _living_namesakes(run: Run, wanted: str) -> list[str]:
    """Return the ids of running runs with the name that the user wrote, who may mean one of them; empty if the user
    wrote an id.
    """
    if wanted != run.name or wanted == run.id:
        return []
    return [each.id for each in runs_in(runs_folder()) if each.name == wanted and each.owner == "alive"]


def _without_owner(run: Run, now: float) -> tuple[int, str]:
    if run.ended:
        return NOTHING, f"run {run.id} had ended already"
    died = f"run {run.id} has ended: its owner died"
    provider = run.status.get("provider") or _planned_provider(run)
    if provider == "local":
        return NOTHING, f"{died}, and what it had started on this computer ends with it"
    if provider == "ssh":
        spec, written = read_json(run.directory / "run.json").get("spec"), run.status.get("written")
        return UNKNOWN, f"{died}. {_left_on_hosts(spec, None if written is None else now - written)}"
    return SOMETHING, f"{died}, and machines may be left, which `outrider gc` shows and removes"


def _planned_provider(run: Run) -> str:
    """Return the name of the run's provider, if all its specs have the same one, else an empty text.

    Needed for a run whose owner died before it had any machine.
    """
    try:
        names = {spec["provider"]["class"].lower() for spec in read_json(run.directory / "run.json")["spec"]["specs"]}
    except (KeyError, TypeError, AttributeError):
        return ""
    return names.pop() if len(names) == 1 else ""


def _left_on_hosts(spec: object, silent_s: float | None) -> str:
    """Return a text about the hosts of a pool whose owner has died: whether tasks may still run there. No I/O.

    ``silent_s``: the seconds since the owner's last update of its record; None: unknown.
    """
    lease_s = spec.get("lease_s") if isinstance(spec, dict) else None
    nothing = "This has ended nothing, for nobody here holds a connection to its hosts"
    if not isinstance(lease_s, int | float) or silent_s is None:
        return f"{nothing}. Whether tasks still run there is not known: they end by the pool's lease."
    if silent_s > STATUS_S + lease_s:
        state = f"The pool's lease of {lease_s:g} s is over, and hosts end their tasks by themselves when it is"
        return f"{nothing}. {state}; it is not known whether they have."
    within_s = math.ceil(STATUS_S + lease_s - silent_s)
    state = f"Tasks may still run there, and end by the pool's lease within {within_s} s"
    return f"{nothing}. {state}; it is not known whether they have ended already."


def _program_ended(run: Run) -> bool:
    """Wait up to `PROGRAM_S`. Return whether the program has ended or has left the `with` block of its pool."""
    until = time.monotonic() + PROGRAM_S
    while run.owner == "alive":
        if time.monotonic() > until:
            return False
        time.sleep(POLL_S)
    return True


def _pid(run: Run) -> int | None:
    owner = read_json(run.directory / "run.json").get("owner")
    return owner.get("pid") if isinstance(owner, dict) else None
