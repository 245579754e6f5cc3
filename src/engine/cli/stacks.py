"""`outrider stacks`: shows the call stacks of a run's tasks."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

from ..api.sink import Refused
from ..api.task_stack import TaskStack
from ..runs.control import NoAnswer, ask
from ..runs.reader import Run
from .exit_codes import DONE, WRONG
from .flags import AsJson, Flag
from .run_choice import RunWord, chosen_run

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
