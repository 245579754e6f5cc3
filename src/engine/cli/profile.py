"""`outrider profile`: takes a profile of a run, and reports which rank the others wait for."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..api.checks import refuse
from ..api.sink import Refused
from ..runs.control import NoAnswer, ask
from ..runs.reader import Run
from .exit_codes import DONE, WRONG
from .flags import AsJson, Flag
from .run_choice import RunWord, chosen_run

if TYPE_CHECKING:
    from ..profiles.merged import Merged

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
    from ..profiles.merged import facts, lines_of, profiles_in

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
    from ..profiles.merged import merge

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
    from ..profiles.merged import merge, profiles_in

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
