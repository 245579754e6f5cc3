"""A logger for Lightning that logs into the run's record (its folder). Only this module imports lightning."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from ..runtime.instance_info import instance_info
from .loggable import Ranks, is_logging, log_numbers, log_settings

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger  # pyright: ignore[reportMissingImports]  it may not be here
# the older package pytorch_lightning is in use; its classes differ from those of lightning
elif "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning.loggers import Logger
else:
    from lightning.pytorch.loggers import Logger


class LightningLogger(Logger):  # type: ignore[misc]  # of a framework that may not be here
    """Logs the values of ``self.log`` on the ranks in ``ranks``, and the hyperparameters on rank 0."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self._ranks: Ranks = ranks

    @property
    def name(self) -> str:  # Lightning uses this as the default folder of checkpoints
        return "outrider"

    @property
    def version(self) -> str:
        return f"job-{instance_info().job}"

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        if is_logging(self._ranks):
            log_numbers(metrics, step)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if is_logging("head") and params:
            log_settings(vars(params) if isinstance(params, Namespace) else params)
