"""Define the options that users configure. Each is checked when it is written, so that a spec that exists is valid."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from math import isfinite
from typing import Any, Literal, NoReturn, Self, TypedDict, Unpack, cast, get_args

from ..wire.messages import LONGEST_S
from .errors import SpecError, unknown_option
from .plugin import Plugin

OnLossOption = Literal["auto", "restart", "resend", "fail"]
ConsoleOption = Literal["auto", "rich", "plain", "silent"]
WorkerKind = Literal["process", "thread"]
Selection = Literal["cheapest", "first"]
NAME_LENGTH = 40  # of a pool


@dataclass(frozen=True, slots=True, init=False)
class Nodes:
    """The number of nodes: the pool is ready at ``min``, grows to ``desired``, and `resize` keeps within ``max``.

    ``spare`` further nodes stand by, ready and without work: one of them takes the place of a node that is lost, or
    will be, at once. They cost what the others cost.
    """

    desired: int
    min: int
    max: int
    spare: int

    def __init__(
        self,
        desired: int,
        *,
        min: int | None = None,  # noqa: A002
        max: int | None = None,  # noqa: A002
        spare: int = 0,
    ) -> None:
        """``min`` and ``max`` are ``desired`` where they are not given."""
        least, most = desired if min is None else min, desired if max is None else max
        for name, value in (("desired", desired), ("min", least), ("max", most)):
            count(f"Nodes({name}=...)", value)
        count("Nodes(spare=...)", spare, least=0)
        if least > most:
            refuse(f"Nodes: max={most} is less than min={least}.")
        if not least <= desired <= most:
            refuse(f"Nodes: desired={desired} is not between min={least} and max={most}.")
        object.__setattr__(self, "desired", desired)
        object.__setattr__(self, "min", least)
        object.__setattr__(self, "max", most)
        object.__setattr__(self, "spare", spare)

    @classmethod
    def of(cls, nodes: int | tuple[int, int] | Nodes) -> Nodes:
        """Return the `Nodes` that a ``nodes=`` option means: ``4``, ``(2, 8)`` for ready at 2 and growing to 8, or
        `Nodes`.
        """
        match nodes:
            case Nodes():
                return nodes
            case (least, most):
                count("the least of nodes=(least, most)", least)
                count("the most of nodes=(least, most)", most)
                if least > most:
                    refuse(f"nodes={nodes!r}: the most, {most}, is less than the least, {least}.")
                return cls(most, min=least)
            case _:
                count("nodes", nodes)
                return cls(nodes)


@dataclass(frozen=True, slots=True)
class Worker:
    """A node's task slots: ``concurrency`` tasks at a time, each in a process of its own.

    ``kind="thread"``: all of them in threads of one process, for tasks that wait more than they compute. A task that
    takes the process down takes the others with it, and plugins that set up a whole process are refused.
    """

    concurrency: int = 1
    kind: WorkerKind = "process"

    def __post_init__(self) -> None:
        count("Worker(concurrency=...)", self.concurrency)
        one_of("Worker(kind=...)", self.kind, get_args(WorkerKind))


class TaskOptions(TypedDict, total=False):
    """The options of `@compute` and ``.with_()``."""

    timeout: float | timedelta | None
    queue_timeout: float | timedelta | None
    retries: int
    max_restarts: int
    retry: Literal["on_loss", "never"]
    on_loss: OnLossOption
    name: str


@dataclass(frozen=True, slots=True)
class Options:
    """The options that say how a task is treated."""

    timeout_s: float | None = None  # of running
    queue_timeout_s: float | None = None  # of waiting for a slot
    retries: int = 3  # further attempts when the node is lost
    max_restarts: int = 0  # further attempts when one failed by itself: of a task, or of all ranks of a broadcast
    at_most_once: bool = False  # retry="never"
    on_loss: OnLossOption = "auto"  # what a broadcast does when it loses a rank
    name: str | None = None  # shown instead of the function's

    @classmethod
    def of(cls, **options: Unpack[TaskOptions]) -> Options:
        """Return the options that `@compute` was given, checked.

        Raises:
            SpecError
        """
        return cls().changed(**options)

    def changed(self, **options: Unpack[TaskOptions]) -> Self:
        """Return these options with some of them changed.

        Raises:
            SpecError
        """
        known = TaskOptions.__annotations__
        changes: dict[str, Any] = {}
        for option, value in options.items():
            match option:
                case "timeout" | "queue_timeout":
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
                case "name":
                    if not isinstance(value, str) or not value.strip():
                        refuse(f"name takes a string that is not empty, not {shown(value)}.")
                    changes["name"] = value
                case _:
                    raise unknown_option("@compute", option, tuple(known))
        retries = changes.get("retries")
        if retries and (changes.get("at_most_once") or ("retry" not in options and self.at_most_once)):
            refuse(f'retry="never" and retries={retries} contradict each other: leave one out.')
        merged = replace(self, **changes)
        if merged.max_restarts and (merged.at_most_once or merged.on_loss in {"resend", "fail"}):
            how = 'retry="never"' if merged.at_most_once else f"on_loss={merged.on_loss!r}"
            refuse(f"max_restarts={merged.max_restarts} runs every rank again, which {how} forbids: leave one out.")
        return merged

    def given(self) -> TaskOptions:
        """The options that differ from the defaults, as they would be written."""
        written: dict[str, Any] = {}
        default = Options()
        for each in fields(self):
            value = getattr(self, each.name)
            if value != getattr(default, each.name):
                if each.name == "at_most_once":
                    written["retry"] = "never"
                else:
                    written[each.name.removesuffix("_s")] = value
        return cast("TaskOptions", written)


def placement(on: int | Literal["head"] | None, *, most: int) -> int | None:
    """Return the rank of the node that ``on=`` of `Pool.run` means, in a pool of ``most`` nodes; None: any node.

    Raises:
        SpecError
    """
    if on is None:
        return None
    if on == "head":
        return 0
    if not isinstance(on, int) or isinstance(on, bool) or on < 0:
        refuse(f'on takes "head" or the rank of a node, 0 or more, not {shown(on)}.')
    if on >= most:
        refuse(f"on={on} is the rank of no node of this pool: the last of {most} has rank {most - 1}.")
    return on


def seconds(name: str, value: object) -> float:
    """Return the seconds of a duration as users may write it: seconds, or a timedelta; more than nothing.

    Raises:
        SpecError
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if not isinstance(value, int | float) or isinstance(value, bool):
        refuse(f"{name} takes seconds or a timedelta, not {shown(value)}.")
    if not isfinite(value) or value <= 0:
        refuse(f"{name} must be more than 0 seconds, not {value}; leave it out for no limit.")
    return min(float(value), LONGEST_S)


def amount(name: str, value: object, unit: str) -> float:
    """Return an option's amount, in ``unit``.

    Raises:
        SpecError: it is no number, or not more than nothing.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        refuse(f"{name} takes {unit}, as a number, not {shown(value)}.")
    if not isfinite(value) or value <= 0:
        refuse(f"{name} must be more than 0 {unit}, not {value}; leave it out for no limit.")
    return float(value)


def pool_name(name: object, *, most: int = NAME_LENGTH) -> str:
    """Check a pool's name, which becomes a tag, a directory and a part of other names.

    Raises:
        SpecError
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or len(name) > most:
        refuse(f"name takes up to {most} letters, digits, '.', '_' and '-', not {shown(name)}: as in name=\"train-1\".")
    return name


def left_name(name: object) -> str:
    """Check the name of a pool to attach to: its name, or its `unique` one.

    Raises:
        SpecError
    """
    return pool_name(name, most=NAME_LENGTH + len("-123456"))


def unique(name: str) -> str:
    """Return a name for one pool, by which all that belongs to it is found and ended. Pools with the same
    ``name`` get different ones.
    """
    return f"{name}-{secrets.token_hex(3)}"


def is_named(unique_name: str, name: str) -> bool:
    """Return whether ``unique_name`` was made by `unique` from ``name``, or is ``name`` itself."""
    return unique_name == name or re.fullmatch(rf"{re.escape(name)}-[0-9a-f]{{6}}", unique_name) is not None


def check_pool(plugins: object, on_loss: object, console: object, selection: object) -> None:
    """Check the options of `Pool` other than sizes and machines.

    Raises:
        SpecError
    """
    if isinstance(plugins, Plugin) or not isinstance(plugins, Sequence) or isinstance(plugins, str):
        refuse(f"plugins takes a list, as in plugins=[plugins.torch()], not {shown(plugins)}.")
    for plugin in plugins:
        if not isinstance(plugin, Plugin):
            call = f": write plugins.{plugin.__name__}()" if hasattr(plugin, "__name__") else ""
            refuse(f"plugins takes plugins, not {shown(plugin)}{call}.")
    one_of("on_loss", on_loss, get_args(OnLossOption))
    one_of("console", console, get_args(ConsoleOption))
    one_of("selection", selection, get_args(Selection))


def count(name: str, value: object, *, least: int = 1) -> None:
    """Check a whole number.

    Raises:
        SpecError: it is no whole number, or less than ``least``.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(f"{name} takes a whole number, not {shown(value)}.")
    if value < least:
        refuse(f"{name} must be at least {least}, not {value}.")


def one_of(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        from difflib import get_close_matches

        close = get_close_matches(value, choices, n=1) if isinstance(value, str) else ()
        meant = f" Did you mean {close[0]!r}?" if close else ""
        refuse(f"{name} takes {' or '.join(map(repr, choices))}, not {shown(value)}.{meant}")


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def refuse(message: str) -> NoReturn:
    raise SpecError(message)
