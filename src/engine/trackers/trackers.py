"""`outrider.trackers`: where runs can be sent, and what a tracker of your own is made of."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...providers.option_names import closest
from ..api.checks import one_of, refuse
from .base import Artifact, Away, End, Point, Refused, Rejected, Sender, Text, TrackedRun, Tracker

if TYPE_CHECKING:
    from .mlflow import MLflow

__all__ = [
    "Artifact",
    "Away",
    "End",
    "MLflow",
    "Point",
    "Refused",
    "Rejected",
    "Sender",
    "Text",
    "TrackedRun",
    "Tracker",
]
# Each kind, as files and commands call it: its module here, and its class.
KINDS = {
    "mlflow": ("mlflow", "MLflow"),
}
_OF_CLASS = {name: module for module, name in KINDS.values()}


def __getattr__(name: str) -> Any:
    if name in _OF_CLASS:
        found = globals()[name] = getattr(import_module(f"{__package__}.{_OF_CLASS[name]}"), name)
        return found
    close = "" if name.startswith("_") else closest(name, __all__)
    hint = f": did you mean trackers.{close}?" if close else f": there are {', '.join(_OF_CLASS)}"
    raise AttributeError(f"No tracker is called {name}{hint}", name=name)


def __dir__() -> list[str]:
    return sorted(__all__)


def made(kind: str, options: dict[str, Any]) -> Tracker:
    """Return the tracker of a kind, as ``{ name = "mlflow", experiment = "digits" }`` of a file means it.

    Raises:
        SpecError
    """
    one_of("trackers", kind, [*KINDS])
    module, name = KINDS[kind]
    try:
        tracker: Tracker = getattr(import_module(f"{__package__}.{module}"), name)(**options)
    except TypeError as error:
        refuse(f"{name}: {error}.")
    return tracker
