"""`outrider profile`: takes a profile of a living run, and reports which rank the others wait for."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ...actors.events import ProfileTaken
from ..api.checks import refuse
from ..profiles.merged import Merged, facts, lines_of, merge, profiles_in
from ..runs.control import NoAnswer, Refused, ask
from ..runs.reader import Run
from .exit_codes import DONE, WRONG
from .flags import AsJson, Flag
from .run_choice import RunWord, chosen_run

ANSWER_S = 100.0  # wait for the reply, in addition to the profile's duration; nodes have 80 s to send their parts
MOST_S = 600.0
STEPS, STEPS_WITHIN_S = 5, 10.0  # default number of steps, and default limit in seconds
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
    """Take a profile of a living run: one trace of all ranks, and a table that says which rank the others wait for.

    It ends after some steps of the tasks, or some seconds. Nothing is ended by it. The trace is written into the run's
    record, for https://ui.perfetto.dev, and its path is printed. Exits with 1 where no rank has a trace, and with 2
    where there is no such run, or it does not answer.

    Example: `outrider profile train --steps 5 --ranks 0-3`

    Parameters
    ----------
    steps:
        Whole steps that it takes. They are those of torch's optimizer, or of log_metrics(step=), or of should_stop(). 0
        takes all of the seconds.
    seconds:
        It ends after so many seconds at the latest, at most 600.
    ranks:
        Only these ranks of broadcasts, as 0-3,8. Everything that runs is taken without it.
    last:
        Take none, and show the newest that the record has, as of a run that has ended.
    output:
        Copy the trace to this file.
    as_json:
        Print JSON, for programs.
    """
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
        shutil.copyfile(taken.trace, output)
    print(json.dumps(facts(taken), indent=2) if as_json else "\n".join(lines_of(taken)))
    return DONE if taken.trace is not None else FAILED


def take_profile(run: Run, *, steps: int, seconds: float, ranks: list[tuple[int, int]] | None = None) -> Merged:
    """Request a profile from the owner of a run, and merge its parts in the run's record.

    Raises:
        Refused, NoAnswer: as for `ask`.
        OSError: the trace cannot be written.
    """
    answer = ask(run, "profile", within_s=math.ceil(seconds) + ANSWER_S, steps=steps, seconds=seconds, ranks=ranks)
    rows: list[dict[str, Any]] = answer["profiles"]
    if not rows:
        raise Refused(f"nothing runs in {run.id} of which a profile could be taken")
    parts = [ProfileTaken(**each) for each in rows]
    return merge(run.directory, parts[0].profile, parts)


def newest_profile(run: Run) -> Merged:
    """Merge the newest profile in a run's record.

    Raises:
        Refused: the record has no profile.
    """
    profiles = profiles_in(run.directory)
    if not profiles:
        raise Refused(f"the record of {run.id} has no profile")
    name = [*profiles][-1]
    return merge(run.directory, name, profiles[name])


def rank_spans(ranks: str) -> list[tuple[int, int]] | None:
    """Return the spans of ranks in a text such as "0-3,8", each as its first and last rank; None: all ranks.

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
