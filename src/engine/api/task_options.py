"""The options of a function, in the form in which users pass them and in a checked form.

Options such as ``cpus=`` and ``memory_gb=`` become the amounts of a node (processors, memory, accelerators) that the
function needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypedDict, Unpack, get_args

from ...actors.amounts import GB, NOTHING, Amounts
from ...lazy_dataclass import dataclass
from . import checks
from .checks import check_known, count, one_of, refuse, seconds, shown
from .errors import NotACall

if TYPE_CHECKING:
    from datetime import timedelta


def amounts(before: Amounts | None, option: str, value: object) -> Amounts | None:
    """Return the amounts of processors, memory and accelerators that a function needs, after one option has changed.

    ``before``: the amounts before the change. ``value``: the option's new value; None removes the option. The result is
    None if no amount is left.

    Raises:
        SpecError: The value is not valid.
    """
    needs = NOTHING if before is None else before
    match option:
        case "cpus":
            needs = needs._replace(millicpus=0 if value is None else _at_least_one(option, value, "processors", 1000))
        case "memory_gb":
            needs = needs._replace(memory_bytes=0 if value is None else _at_least_one(option, value, "GB", GB))
        case _:
            if value is not None:
                checks.count(option, value)
            needs = needs._replace(gpus=value if isinstance(value, int) else 0)
    return needs if any(needs) else None


def _at_least_one(option: str, value: object, unit: str, parts: float) -> int:
    """Convert a value in ``unit`` to an integer number of smaller units, at least 1.

    One ``unit`` has ``parts`` of them.
    """
    return max(1, checks.in_parts(checks.amount(option, value, unit), parts))


OnLossOption = Literal["auto", "restart", "resend", "fail"]
OnStallOption = Literal["report", "restart"]


class TaskOptions(TypedDict, total=False):
    """The options of a function. The docstring of `compute` describes them."""

    timeout: float | timedelta | None
    queue_timeout: float | timedelta | None
    deadline: float | timedelta | None
    retries: int
    max_restarts: int
    retry: Literal["on_loss", "never"]
    on_loss: OnLossOption
    stall: float | timedelta | None
    on_stall: OnStallOption
    name: str
    cpus: float | None
    memory_gb: float | None
    gpus: int | None


@dataclass(frozen=True, slots=True)
class Options:
    timeout_s: float | None = None  # limit of the run time
    queue_timeout_s: float | None = None  # limit of the wait for a slot
    deadline_s: float | None = None  # limit from the submission to the end
    retries: int = 3  # additional attempts after the loss of the node
    max_restarts: int = 0  # additional attempts after a failure of the task itself, or of any rank of a broadcast
    at_most_once: bool = False  # True for retry="never"
    on_loss: OnLossOption = "auto"  # the reaction of a broadcast to the loss of a rank
    stall_s: float | None = None  # seconds without a sign of progress after which the task is stalled
    on_stall: OnStallOption = "report"
    name: str | None = None  # name to show instead of the function's
    setup: Callable[[], Any] | None = None  # returns the function's first argument; runs once in each process
    needs: Amounts | None = None  # the processors, memory and accelerators that the task holds while it runs
    keep: bool = False  # whether results stay on their nodes

    if not TYPE_CHECKING:

        def __call__(self, **options: Any) -> NoReturn:
            text = ", ".join(f"{name}={shown(value)}" for name, value in options.items())
            raise NotACall(f"the options of a function are changed by f.with_({text or 'timeout=...'})")

    def changed(self, **options: Unpack[TaskOptions]) -> Self:
        check_known("@compute", options, TaskOptions.__annotations__)
        changes: dict[str, Any] = {}
        for option, value in options.items():
            match option:
                case "timeout" | "queue_timeout" | "deadline" | "stall":
                    changes[f"{option}_s"] = None if value is None else seconds(option, value)
                case "retries" | "max_restarts":
                    count(option, value, least=0)
                    changes[option] = value
                case "retry":
                    one_of("retry", value, ("on_loss", "never"))
                    changes["at_most_once"] = value == "never"
                case "on_loss":
                    one_of("on_loss", value, get_args(OnLossOption))
                    changes["on_loss"] = value
                case "on_stall":
                    one_of("on_stall", value, get_args(OnStallOption))
                    changes["on_stall"] = value
                case "cpus" | "memory_gb" | "gpus":
                    changes["needs"] = amounts(changes.get("needs", self.needs), option, value)
                case _:
                    if not isinstance(value, str) or not value.strip():
                        refuse(f"name takes a string that is not empty, not {shown(value)}.")
                    changes["name"] = value
        retries = changes.get("retries")
        if retries and (changes.get("at_most_once") or ("retry" not in options and self.at_most_once)):
            refuse(f'retry="never" and retries={retries} contradict each other: leave one out.')
        merged = replace(self, **changes)
        if merged.max_restarts and (merged.at_most_once or merged.on_loss in {"resend", "fail"}):
            how = 'retry="never"' if merged.at_most_once else f"on_loss={merged.on_loss!r}"
            refuse(f"max_restarts={merged.max_restarts} runs every rank again, which {how} forbids: leave one out.")
        if merged.on_stall == "restart" and (merged.stall_s is None or merged.at_most_once):
            missing = "give stall= as well" if merged.stall_s is None else 'retry="never" forbids it'
            refuse(f'on_stall="restart" runs again what has given no sign of life for stall= seconds: {missing}.')
        return merged
