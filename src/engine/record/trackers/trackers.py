"""The public module `outrider.trackers`: destinations for runs, and base classes for your own tracker."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ....providers.shared.option_names import closest
from ...api.checks import one_of, refuse
from .base import Artifact, Away, End, Point, Ranks, Refused, Rejected, Sender, Text, TrackedRun, Tracker

if TYPE_CHECKING:
    from .json_lines import JSONLines
    from .mlflow import MLflow
    from .tensorboard import TensorBoard
    from .wandb import WandB
    from .webhook import Webhook

__all__ = [
    "Artifact",
    "Away",
    "End",
    "JSONLines",
    "MLflow",
    "Point",
    "Ranks",
    "Refused",
    "Rejected",
    "Sender",
    "TensorBoard",
    "Text",
    "TrackedRun",
    "Tracker",
    "WandB",
    "Webhook",
]
# kind of tracker in files and commands -> (module in this folder, class)
KINDS = {
    "jsonl": ("json_lines", "JSONLines"),
    "mlflow": ("mlflow", "MLflow"),
    "tensorboard": ("tensorboard", "TensorBoard"),
    "wandb": ("wandb", "WandB"),
    "webhook": ("webhook", "Webhook"),
}
_OF_CLASS = {name: module for module, name in KINDS.values()}


def __getattr__(name: str) -> Any:
    if name in _OF_CLASS:
        tracker_class = globals()[name] = getattr(import_module(f"{__package__}.{_OF_CLASS[name]}"), name)
        return tracker_class
    close = "" if name.startswith("_") else closest(name, __all__)
    hint = f": did you mean trackers.{close}?" if close else f": there are {', '.join(_OF_CLASS)}"
    raise AttributeError(f"No tracker is called {name}{hint}", name=name)


def __dir__() -> list[str]:
    return sorted(__all__)


def new_tracker(kind: str, options: dict[str, Any]) -> Tracker:
    """Create a tracker of a given kind: a name in `KINDS`, or your own class as ``package.module:Class``.

    Raises:
        SpecError: The kind does not exist, or an option is not valid.
    """
    module, colon, name = kind.partition(":")
    if not colon:
        one_of("a tracker's kind", kind, [*KINDS])
        module, name = KINDS[kind]
        module = f"{__package__}.{module}"
    try:
        tracker = getattr(import_module(module), name)(**options)
    except (TypeError, AttributeError, ImportError) as error:
        refuse(f"{name or kind}: {error}.")
    if not isinstance(tracker, Tracker):
        refuse(f"{kind} is no trackers.Tracker.")
    return tracker
