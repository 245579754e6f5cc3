"""The verbs that send a request to the program that owns a run: `outrider stop`, `outrider stacks`, `outrider profile`.

`stop` ends the run with its tasks and nodes, `stacks` shows the call stacks of its tasks, and `profile` takes a profile
and reports which rank the others wait for.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..api.checks import refuse
from ..api.language import worded
from ..api.printable import plain
from ..api.sink import Refused
from ..api.task_stack import TaskStack
from ..record.runs.control import NoAnswer, ask
from ..record.runs.names import runs_folder
from ..record.runs.reader import Run, read_json, run_of, runs_in
from .common import DONE, NOTHING, SOMETHING, UNKNOWN, WRONG, AsJson, Flag
from .run_choice import RunWord, checked_timeout, chosen_run

if TYPE_CHECKING:
    from ..record.profiles import Merged


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


WITHIN_S = 15.0  # seconds to wait for the reply: each node has 5 s to send its stacks, and a large pool has many nodes


def stacks(run: RunWord, /, *, rank: Annotated[list[int] | None, Flag] = None, as_json: AsJson = False) -> int:
    """Show the call stack of each task and rank of a run, and save the stacks in the run's record.

    This works while tasks hang, and it neither ends nor delays them. Exits with 2 if there is no such run, or the run
    does not answer.

    Example: `outrider stacks train --rank 1`

    Parameters
    ----------
    rank:
        Only this rank of broadcasts. Can be repeated.
    as_json:
        Print JSON, for programs.
    """
    try:
        taken = take_stacks(chosen_run(run))
    except (NoAnswer, Refused) as error:
        print(f"outrider: {error}", file=sys.stderr)
        return WRONG
    shown = [each for each in taken if rank is None or (each["generation"] and each["rank"] in rank)]
    if as_json:
        print(json.dumps(shown, indent=2))
    else:
        print("\n\n".join(str(TaskStack(**each)) for each in shown) or "Nothing runs.")
    return DONE


def take_stacks(run: Run) -> list[dict[str, Any]]:
    """Request the stacks from the owner of a run (its program), which also writes them to the run's record.

    Return the fields of each `TaskStack`.

    Raises:
        Refused, NoAnswer: raised by `ask`, as its description says.
    """
    taken: list[dict[str, Any]] = ask(run, "stacks", within_s=WITHIN_S)["stacks"]
    return taken


ANSWER_S = 100.0  # seconds to wait for the reply after the profile's end; nodes have 80 s to send their traces
MOST_S = 600.0
STEPS, STEPS_WITHIN_S = 5, 10.0  # defaults: the number of steps, and the limit in seconds
FAILED = 1  # exit code: no rank has a trace, or the trace cannot be written
_RANKS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def profile(
    run: RunWord,
    /,
    *,
    steps: int = STEPS,
    seconds: float = STEPS_WITHIN_S,
    ranks: str = "",
    last: Annotated[bool, Flag] = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    as_json: AsJson = False,
) -> int:
    """Profile a run: write one trace of all ranks, and show which rank the others wait for.

    The profile covers some steps of the tasks, or some seconds. The tasks go on. The trace is saved in the run's
    record, and its path is printed: open it in https://ui.perfetto.dev. Exits with 1 if no rank has a trace, and with 2
    if there is no such run, or the run does not answer.

    Example: `outrider profile train --steps 5 --ranks 0-3`

    Parameters
    ----------
    steps:
        How many whole steps to profile. They are steps of torch's optimizer, of log_metrics(step=), or of
        should_stop(). 0: profile for the whole time of --seconds.
    seconds:
        End the profile after this many seconds, even before the last step. At most 600.
    ranks:
        Only these ranks of broadcasts, such as 0-3,8. Default: everything that runs.
    last:
        Take no new profile: show the newest one in the record, also of a run that has ended.
    output:
        Copy the trace to this file.
    as_json:
        Print JSON, for programs.
    """
    from ..record.profiles import facts, lines_of, profiles_in

    if steps < 0 or not 0 < seconds <= MOST_S:
        refuse(f"a profile has 0 steps or more, and up to {MOST_S:g} seconds: --steps {steps} --seconds {seconds:g}.")
    spans = rank_spans(ranks)
    chosen = chosen_run(run)
    try:
        taken = newest_profile(chosen) if last else take_profile(chosen, steps=steps, seconds=seconds, ranks=spans)
    except (NoAnswer, Refused) as error:
        ended = isinstance(error, NoAnswer) and not error.busy and not last
        hint = (
            ": --last shows the newest profile that its record has" if ended and profiles_in(chosen.directory) else ""
        )
        print(f"outrider: {error}{hint}", file=sys.stderr)
        return WRONG
    except OSError as error:
        print(f"outrider: the trace cannot be written into the record ({error.strerror or error})", file=sys.stderr)
        return FAILED
    if output is not None and taken.trace is not None:
        from shutil import copyfile

        copyfile(taken.trace, output)
    print(json.dumps(facts(taken), indent=2) if as_json else "\n".join(lines_of(taken)))
    return DONE if taken.trace is not None else FAILED


def take_profile(run: Run, *, steps: int, seconds: float, ranks: list[tuple[int, int]] | None = None) -> Merged:
    """Request a profile from the owner of a run (its program), and merge the nodes' traces into one in the run's
    record.

    Raises:
        Refused, NoAnswer: raised by `ask`, as its description says.
        OSError: the trace cannot be written.
    """
    from ...actors.events import ProfileTaken
    from ..record.profiles import merge

    answer = ask(run, "profile", within_s=math.ceil(seconds) + ANSWER_S, steps=steps, seconds=seconds, ranks=ranks)
    rows: list[dict[str, Any]] = answer["profiles"]
    if not rows:
        raise Refused(f"nothing runs in {run.id} of which a profile could be taken")
    parts = [ProfileTaken(**each) for each in rows]
    return merge(run.directory, parts[0].profile, parts)


def newest_profile(run: Run) -> Merged:
    """Merge the traces of the newest profile in a run's record into one.

    Raises:
        Refused: the record has no profile.
    """
    from ..record.profiles import merge, profiles_in

    profiles = profiles_in(run.directory)
    if not profiles:
        raise Refused(f"the record of {run.id} has no profile")
    name = [*profiles][-1]
    return merge(run.directory, name, profiles[name])


def rank_spans(ranks: str) -> list[tuple[int, int]] | None:
    """Return the ranges of ranks in a text such as "0-3,8", each as its first and last rank; None: all ranks.

    Raises:
        SpecError: the text is not valid.
    """
    if not ranks:
        return None
    spans = []
    for part in ranks.split(","):
        match = _RANKS.fullmatch(part.strip())
        first, until = (0, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
        if until < first:
            refuse(f"--ranks takes ranks such as 0-3,8, not {ranks!r}.")
        spans.append((first, until))
    return spans
