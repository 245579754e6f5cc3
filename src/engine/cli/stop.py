"""`outrider stop`: ends the pool of a run in an orderly way."""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

from ..api.language import worded
from ..api.printable import plain
from ..runs.control import NoAnswer, Refused, ask
from ..runs.names import runs_folder
from ..runs.reader import Run, read_json, run_of, runs_in
from .exit_codes import NOTHING, SOMETHING, UNKNOWN
from .flags import AsJson
from .run_choice import RunWord, checked_timeout, chosen_run

PROGRAM_S = 5.0  # seconds for a program to end itself after its pool has ended, as `outrider run` does
POLL_S = 0.02
LEAST_S = 0.01  # shortest wait for a reply
SOON_S = 5.0  # seconds of waiting after which a message is printed
STATUS_S = 60.0  # longest interval at which a living owner updates its record


def stop(run: RunWord, /, *, timeout: float = 600.0, as_json: AsJson = False) -> int:
    """End a run: all that its nodes do, and the nodes. A program gets the error RunStopped from its pool.

    Example: `outrider stop train`

    Exits with 0 when nothing of the run is left, or it had ended before; with 1 when machines may be left; and with 2
    when that is not known: there is no such run, it is of another computer, its program does not answer, or died and
    left its tasks on hosts of your own. Of a name
    whose newest run has ended, while an older one lives, nothing is ended: write the id.

    Parameters
    ----------
    timeout:
        Seconds to wait for the end of all machines. On this computer it takes less than one.
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

    Return the exit code, the message, and further fields for JSON. ``wanted``: the user's word for the run.
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
    """Request the end of the run from its owner, and print a message if that takes long.

    A second request gets the same reply as the first.
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
    """Return the ids of older living runs of the same name, if the user wrote only the name, which may mean one of
    them.
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
    """Return the pool's provider, if it is planned to have only one, else an empty text.

    An owner may die before it has any machine.
    """
    try:
        names = {spec["provider"]["class"].lower() for spec in read_json(run.directory / "run.json")["spec"]["specs"]}
    except (KeyError, TypeError, AttributeError):
        return ""
    return names.pop() if len(names) == 1 else ""


def _left_on_hosts(spec: object, silent_s: float | None) -> str:
    """Return a text with the known facts about hosts whose pool has no owner any more. No I/O.

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
    """Return whether the program has left its pool's block, or ended."""
    until = time.monotonic() + PROGRAM_S
    while run.owner == "alive":
        if time.monotonic() > until:
            return False
        time.sleep(POLL_S)
    return True


def _pid(run: Run) -> int | None:
    owner = read_json(run.directory / "run.json").get("owner")
    return owner.get("pid") if isinstance(owner, dict) else None
