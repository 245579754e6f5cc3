"""A Keras callback that logs the metrics of ``model.fit``. Only this module and the keras plugin import keras."""

from __future__ import annotations

from typing import Any

import keras  # pyright: ignore[reportMissingImports]  it may not be here

from .loggable import Ranks, is_logging, log_numbers


class RecordCallback(keras.callbacks.Callback):  # type: ignore[misc]  # of a framework that may not be here
    """Logs the losses and metrics of each epoch. With ``every``, also logs them after each ``every`` batches.

    The logged step is the epoch's number or, with ``every``, the batch's number.
    """

    def __init__(self, every: int | None, ranks: Ranks) -> None:
        super().__init__()
        self._every = every
        self._ranks: Ranks = ranks
        self._batches: int | None = None  # number of batches since the beginning of the first epoch

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        self._batches = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if self._batches is None:
            # in fit(initial_epoch=3), the first epoch has the number 3
            self._batches = epoch * ((self.params or {}).get("steps") or 0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._batches = (self._batches or 0) + 1
        if self._every and self._batches % self._every == 0:
            self._log(logs, self._batches)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._log(logs, self._batches if self._every else epoch)

    def _log(self, logs: Any, step: int | None) -> None:
        if logs and is_logging(self._ranks):
            log_numbers(logs, step)
